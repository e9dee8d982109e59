// HIP texts on the host: a thread of the system for each thread of a block, blocks one after another.
// What clang has for AMD GPUs and not for this machine is defined here, from AMD's instruction set
// documents and the documentation of clang, so that it is a second word beside the simulator's.
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace host {

constexpr unsigned LANES = LANES_OF_WARP;

// What a lane shows to the others: a matrix operand is the longest.
struct Shown {
    unsigned char bytes[96];
};

struct Warp {
    std::barrier<> meet{LANES};
    Shown shown[LANES];
};

struct Block {
    std::barrier<> meet;
    std::vector<std::unique_ptr<Warp>> warps;
    explicit Block(unsigned threads) : meet(threads)
    {
        for (unsigned at = 0; at < threads / LANES; at++) warps.push_back(std::make_unique<Warp>());
    }
};

inline Block *block;
inline unsigned threads, grid[3];
inline thread_local unsigned thread, place[3];

inline Warp &warp() { return *block->warps[thread / LANES]; }
inline unsigned lane() { return thread % LANES; }

// Shows a value, lets `read` look at what all lanes show, and parts when all have looked.
template <class T, class Read>
auto exchange(const T &value, Read read)
{
    static_assert(sizeof(T) <= sizeof(Shown));
    Warp &all = warp();
    std::memcpy(all.shown[lane()].bytes, &value, sizeof value);
    all.meet.arrive_and_wait();
    auto result = read([&](unsigned of) {
        T shown;
        std::memcpy(&shown, all.shown[of % LANES].bytes, sizeof shown);
        return shown;
    });
    all.meet.arrive_and_wait();
    return result;
}

inline int from_lane(int bytes, int value)
{
    return exchange(value, [&](auto shown) { return shown(unsigned(bytes) / 4); });
}

// Bit-mask mode: within 32 lanes, ((lane & and) | or) ^ xor.
inline int swizzle(int value, int pattern)
{
    const unsigned within = ((lane() & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
    return exchange(value, [&](auto shown) { return shown((lane() & 32) | (within & 31)); });
}

inline unsigned long long ballot(bool says)
{
    return exchange(says, [](auto shown) {
        unsigned long long votes = 0;
        for (unsigned of = 0; of < LANES; of++) votes |= (unsigned long long)shown(of) << of;
        return votes;
    });
}

// v_perm_b32: 0 to 3 are bytes of the second word, 4 to 7 of the first, 8 to 11 the signs of odd
// bytes, 12 is 0, and more is 0xff.
inline unsigned perm(unsigned high, unsigned low, unsigned select)
{
    const unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned word = 0;
    for (unsigned at = 0; at < 4; at++) {
        const unsigned by = select >> 8 * at & 0xff;
        unsigned byte = 0;
        if (by < 8) byte = both >> 8 * by & 0xff;
        else if (by < 12) byte = both >> (16 * (by - 8) + 15) & 1 ? 0xff : 0;
        else if (by > 12) byte = 0xff;
        word |= byte << 8 * at;
    }
    return word;
}

inline unsigned alignbit(unsigned high, unsigned low, unsigned by)
{
    return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}

template <class Byte, class Sum>
Sum dot4(Sum a, Sum b, Sum c)
{
    unsigned sum = unsigned(c);
    for (unsigned at = 0; at < 4; at++)
        sum += unsigned(int(Byte(unsigned(a) >> 8 * at)) * int(Byte(unsigned(b) >> 8 * at)));
    return Sum(sum);
}

// MFMA 16 x 16: lane l holds row (column) l % 16 and the elements l / 16 * per ... of k; register r of
// the sums is row 4 (l / 16) + r and column l % 16.
template <class Element, class Term, class Operand, class Sums>
Sums mfma16(Operand a, Operand b, Sums c, int, int, int)
{
    constexpr unsigned per = sizeof(Operand) / sizeof(Element);
    struct Both { Operand a, b; };
    return exchange(Both{a, b}, [&](auto shown) {
        Sums sums = c;
        for (unsigned at = 0; at < 4; at++) {
            Term sum = c[at];
            for (unsigned part = 0; part < 4; part++) {
                Element left[per], right[per];
                const auto row = shown(16 * part + 4 * (lane() / 16) + at).a;
                const auto column = shown(16 * part + lane() % 16).b;
                std::memcpy(left, &row, sizeof left);
                std::memcpy(right, &column, sizeof right);
                for (unsigned k = 0; k < per; k++) sum += Term(left[k]) * Term(right[k]);
            }
            sums[at] = sum;
        }
        return sums;
    });
}

// WMMA 16 x 16 x 16 of RDNA3: lanes i and i + 16 both hold row (column) i, element k in order; here each
// gives every second element, so that lanes that hold different ones give a wrong sum. Register r of the sums
// is row 2 r + l / 16 and column l % 16.
template <class Element, class Term, class Operand, class Sums>
Sums wmma_copied(Operand a, Operand b, Sums c)
{
    struct Both { Operand a, b; };
    return exchange(Both{a, b}, [&](auto shown) {
        Sums sums = c;
        for (unsigned at = 0; at < 8; at++) {
            Term sum = c[at];
            for (unsigned k = 0; k < 16; k++) {
                Element left[16], right[16];
                const auto row = shown(2 * at + lane() / 16 + 16 * (k % 2)).a;
                const auto column = shown(lane() % 16 + 16 * (k % 2)).b;
                std::memcpy(left, &row, sizeof left);
                std::memcpy(right, &column, sizeof right);
                sum += Term(left[k]) * Term(right[k]);
            }
            sums[at] = sum;
        }
        return sums;
    });
}

// WMMA 16 x 16 x 16 of RDNA4: row (column) i is that of lanes i and i + 16. Of 16-bit elements lane i holds
// those of k = 0 to 3 and 8 to 11, of bytes those of k = 0 to 7; lane i + 16 holds the rest. Register r of
// the sums is row 8 (l / 16) + r and column l % 16.
template <class Left, class Right, class Term, class Operand, class Sums>
Sums wmma_mixed(Operand a, Operand b, Sums c)
{
    struct Both { Operand a, b; };
    return exchange(Both{a, b}, [&](auto shown) {
        Sums sums = c;
        for (unsigned at = 0; at < 8; at++) {
            Term sum = c[at];
            for (unsigned k = 0; k < 16; k++) {
                constexpr bool bytes = sizeof(Left) == 1;
                const unsigned of = bytes ? k / 8 : k / 4 % 2;
                const unsigned place = bytes ? k % 8 : k / 8 * 4 + k % 4;
                Left left[8];
                Right right[8];
                const auto row = shown(8 * (lane() / 16) + at + 16 * of).a;
                const auto column = shown(lane() % 16 + 16 * of).b;
                std::memcpy(left, &row, sizeof left);
                std::memcpy(right, &column, sizeof right);
                sum += Term(left[place]) * Term(right[place]);
            }
            sums[at] = sum;
        }
        return sums;
    });
}

template <class Element, class Term, class Operand, class Sums>
Sums wmma(Operand a, Operand b, Sums c)
{
    return wmma_mixed<Element, Element, Term>(a, b, c);
}

// The integer forms say of each operand whether it is signed, and whether sums saturate.
template <class Operand, class Sums>
Sums wmma_copied_iu8(bool, Operand a, bool, Operand b, Sums c, bool)
{
    return wmma_copied<signed char, int>(a, b, c);
}

template <class Operand, class Sums>
Sums wmma_iu8(bool, Operand a, bool, Operand b, Sums c, bool)
{
    return wmma<signed char, int>(a, b, c);
}

// Elements of 4 bits, two's complement, the first in the lowest bits.
inline int nibble(const void *operand, unsigned at)
{
    unsigned char byte;
    std::memcpy(&byte, static_cast<const unsigned char *>(operand) + at / 2, 1);
    const int code = byte >> at % 2 * 4 & 15;
    return code & 8 ? code - 16 : code;
}

// WMMA 16 x 16 x 16 of RDNA3 on 4 bits: as on bytes, lanes i and i + 16 both hold row (column) i.
template <class Operand, class Sums>
Sums wmma_copied_iu4(bool, Operand a, bool, Operand b, Sums c, bool)
{
    struct Both { Operand a, b; };
    return exchange(Both{a, b}, [&](auto shown) {
        Sums sums = c;
        for (unsigned at = 0; at < 8; at++)
            for (unsigned k = 0; k < 16; k++) {
                const auto row = shown(2 * at + lane() / 16 + 16 * (k % 2)).a;
                const auto column = shown(lane() % 16 + 16 * (k % 2)).b;
                sums[at] += nibble(&row, k) * nibble(&column, k);
            }
        return sums;
    });
}

// WMMA 16 x 16 x 32 of RDNA4 on 4 bits: lane i holds k = 0 to 15 of row (column) i, lane i + 16 the rest.
template <class Operand, class Sums>
Sums wmma_iu4(bool, Operand a, bool, Operand b, Sums c, bool)
{
    struct Both { Operand a, b; };
    return exchange(Both{a, b}, [&](auto shown) {
        Sums sums = c;
        for (unsigned at = 0; at < 8; at++)
            for (unsigned k = 0; k < 32; k++) {
                const auto row = shown(8 * (lane() / 16) + at + 16 * (k / 16)).a;
                const auto column = shown(lane() % 16 + 16 * (k / 16)).b;
                sums[at] += nibble(&row, k % 16) * nibble(&column, k % 16);
            }
        return sums;
    });
}

inline int sudot4(bool a_signed, int a, bool b_signed, int b, int c, bool)
{
    unsigned sum = unsigned(c);
    for (unsigned at = 0; at < 4; at++) {
        const int left = unsigned(a) >> 8 * at & 255, right = unsigned(b) >> 8 * at & 255;
        sum += unsigned((a_signed && left > 127 ? left - 256 : left)
                        * (b_signed && right > 127 ? right - 256 : right));
    }
    return int(sum);
}

// An 8-bit float: 4 bits of exponent, 3 of mantissa, in the two forms that the chips have.
struct Fp8 {
    unsigned char code;
    operator double() const
    {
#ifdef FNUZ
        constexpr int bias = 8;
        if (code == 0x80) return __builtin_nan("");
#else
        constexpr int bias = 7;
        if ((code & 0x7f) == 0x7f) return __builtin_nan("");
#endif
        const int exponent = code >> 3 & 15, mantissa = code & 7;
        const double value = exponent ? __builtin_ldexp(8 + mantissa, exponent - bias - 3)
                                      : __builtin_ldexp(mantissa, 1 - bias - 3);
        return code & 0x80 ? -value : value;
    }
};

// An 8-bit float of 5 bits of exponent, 2 of mantissa, with infinities and NaN: the upper byte of an f16.
struct Bf8 {
    unsigned char code;
    operator double() const
    {
        const std::uint16_t bits = std::uint16_t(code << 8);
        _Float16 value;
        std::memcpy(&value, &bits, 2);
        return double(value);
    }
};

// A small float of a format's number: 0 e4m3, 1 e5m2, 2 e2m3, 3 e3m2, 4 e2m1 (without their NaNs).
inline double number(int format, unsigned code)
{
    constexpr int exponents[] = {4, 5, 2, 3, 2}, mantissas[] = {3, 2, 3, 2, 1};
    const int e = exponents[format], m = mantissas[format], bias = (1 << (e - 1)) - 1;
    const int exponent = code >> m & ((1 << e) - 1), mantissa = code & ((1 << m) - 1);
    const double value = exponent ? __builtin_ldexp((1 << m) + mantissa, exponent - bias - m)
                                  : __builtin_ldexp(mantissa, 1 - bias - m);
    return code >> (e + m) & 1 ? -value : value;
}

// Element k of a row of 128 columns by the lanes that have it: of bytes a lane l has 16 from 16 (l / 16) on
// and 16 from 64 + 16 (l / 16) on, of smaller elements 32 from 32 (l / 16) on, without gaps.
template <class Operand>
double element_of(int format, const Operand (&quarters)[4], unsigned k)
{
    const unsigned bits = format < 2 ? 8 : format < 4 ? 6 : 4;
    const unsigned quarter = bits == 8 ? k % 64 / 16 : k / 32;
    const unsigned at = bits * (bits == 8 ? k / 64 * 16 + k % 16 : k % 32);
    unsigned word[9] = {};
    std::memcpy(word, &quarters[quarter], 32);
    const unsigned long long both = (unsigned long long)word[at / 32 + 1] << 32 | word[at / 32];
    return number(format, unsigned(both >> at % 32) & ((1u << bits) - 1));
}

// MFMA 16 x 16 x 128 with scales: lane l gives those of row (column) l % 16 for columns 32 (l / 16) on.
template <class Operand, class Sums>
Sums mfma_scale(Operand a, Operand b, Sums c, int format_a, int format_b, int byte_a, int scale_a,
                int byte_b, int scale_b)
{
    struct All { Operand a, b; int scale_a, scale_b; };
    return exchange(All{a, b, scale_a, scale_b}, [&](auto shown) {
        Sums sums = c;
        const unsigned column = lane() % 16;
        for (unsigned at = 0; at < 4; at++) {
            const unsigned row = 4 * (lane() / 16) + at;
            Operand left[4], right[4];
            int power[4];
            for (unsigned quarter = 0; quarter < 4; quarter++) {
                const All of_row = shown(16 * quarter + row), of_column = shown(16 * quarter + column);
                left[quarter] = of_row.a;
                right[quarter] = of_column.b;
                power[quarter] = int(unsigned(of_row.scale_a) >> 8 * byte_a & 255)
                    + int(unsigned(of_column.scale_b) >> 8 * byte_b & 255) - 254;
            }
            double sum = c[at];
            for (unsigned k = 0; k < 128; k++) {
                const double product = element_of(format_a, left, k) * element_of(format_b, right, k);
                sum += __builtin_ldexp(product, power[k / 32]);
            }
            sums[at] = float(sum);
        }
        return sums;
    });
}

template <class T, class U>
T fetch_max(T *at, U value)
{
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, 5, 5)) {}
    return old;
}

// Reads a launch, runs it, and writes what its buffers hold.
struct Launch {
    std::vector<std::vector<unsigned char>> memory;
    std::vector<unsigned char *> buffers;
    std::vector<unsigned> parameters;

    explicit Launch(const char *path)
    {
        FILE *file = std::fopen(path, "rb");
        const auto number = [&] {
            std::uint64_t value = 0;
            if (std::fread(&value, 8, 1, file) != 1) std::abort();
            return value;
        };
        for (auto &extent : grid) extent = unsigned(number());
        threads = unsigned(number());
        parameters.resize(number());
        for (auto &parameter : parameters) parameter = unsigned(number());
        memory.resize(number());
        for (auto &bytes : memory) {
            const auto len = number();
            bytes.resize(len + 16);
            if (std::fread(bytes.data(), 1, len, file) != len) std::abort();
            bytes.resize(len);
            buffers.push_back(bytes.data());
        }
        std::fclose(file);
    }

    template <class Kernel>
    void run(Kernel kernel)
    {
        Block all(threads);
        block = &all;
        std::vector<std::thread> running;
        for (unsigned at = 0; at < threads; at++) {
            running.emplace_back([&, at] {
                thread = at;
                for (place[2] = 0; place[2] < grid[2]; place[2]++)
                    for (place[1] = 0; place[1] < grid[1]; place[1]++)
                        for (place[0] = 0; place[0] < grid[0]; place[0]++) {
                            kernel();
                            // Shared memory is the next block's.
                            all.meet.arrive_and_wait();
                        }
            });
        }
        for (auto &one : running) one.join();
    }

    void save(const char *path) const
    {
        FILE *file = std::fopen(path, "wb");
        for (const auto &bytes : memory) std::fwrite(bytes.data(), 1, bytes.size(), file);
        std::fclose(file);
    }
};

} // namespace host

// v_cvt_pk_bf16_f32, to nearest even: compilers call it where a machine has no such instruction.
extern "C" __bf16 __truncsfbf2(float value)
{
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) bits |= 0x400000;
    else bits += 0x7fff + (bits >> 16 & 1);
    const std::uint16_t upper = std::uint16_t(bits >> 16);
    __bf16 code;
    std::memcpy(&code, &upper, 2);
    return code;
}

#define __builtin_amdgcn_workitem_id_x() host::thread
#define __builtin_amdgcn_workgroup_id_x() host::place[0]
#define __builtin_amdgcn_workgroup_id_y() host::place[1]
#define __builtin_amdgcn_workgroup_id_z() host::place[2]
#define __builtin_amdgcn_grid_size_x() (host::grid[0] * host::threads)
#define __builtin_amdgcn_grid_size_y() host::grid[1]
#define __builtin_amdgcn_grid_size_z() host::grid[2]
#define __builtin_amdgcn_fence(order, scope) __atomic_thread_fence(order)
#define __builtin_amdgcn_sched_barrier(kinds) ((void)(kinds))
#define __builtin_amdgcn_s_barrier() host::block->meet.arrive_and_wait()
#define __builtin_amdgcn_wave_barrier() host::warp().meet.arrive_and_wait()
// What it is asked of is promised to be the same in all lanes; the simulator sees to that.
#define __builtin_amdgcn_readfirstlane(value) (value)
#define __builtin_amdgcn_readlane(value, lane) host::from_lane(4 * (lane), value)
#define __builtin_amdgcn_ds_bpermute host::from_lane
#define __builtin_amdgcn_ds_swizzle host::swizzle
#define __builtin_amdgcn_ballot_w64 host::ballot
#define __builtin_amdgcn_ballot_w32(says) unsigned(host::ballot(says))
#define __builtin_amdgcn_perm host::perm
#define __builtin_amdgcn_alignbit host::alignbit
#define __builtin_amdgcn_sdot4(a, b, c, clamp) host::dot4<signed char, int>(a, b, c)
#define __builtin_amdgcn_udot4(a, b, c, clamp) host::dot4<unsigned char, unsigned>(a, b, c)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(...) host::mfma16<__bf16, double>(__VA_ARGS__)
#define __builtin_amdgcn_mfma_f32_16x16x32_bf16(...) host::mfma16<__bf16, double>(__VA_ARGS__)
#define __builtin_amdgcn_mfma_f32_16x16x16f16(...) host::mfma16<_Float16, double>(__VA_ARGS__)
#define __builtin_amdgcn_mfma_f32_16x16x32_f16(...) host::mfma16<_Float16, double>(__VA_ARGS__)
#define __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(...) host::mfma16<host::Fp8, double>(__VA_ARGS__)
#define __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4 host::mfma_scale
#define __builtin_amdgcn_mfma_i32_16x16x32_i8(...) host::mfma16<signed char, int>(__VA_ARGS__)
#define __builtin_amdgcn_mfma_i32_16x16x64_i8(...) host::mfma16<signed char, int>(__VA_ARGS__)
#define __builtin_amdgcn_sudot4 host::sudot4
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(...) host::wmma_copied<__bf16, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(...) host::wmma_copied<_Float16, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32 host::wmma_copied_iu8
#define __builtin_amdgcn_wmma_i32_16x16x16_iu4_w32 host::wmma_copied_iu4
#define __builtin_amdgcn_wmma_i32_16x16x32_iu4_w32_gfx12 host::wmma_iu4
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(...) host::wmma<__bf16, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(...) host::wmma<_Float16, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(...) host::wmma<host::Fp8, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_f32_16x16x16_fp8_bf8_w32_gfx12(...) host::wmma_mixed<host::Fp8, host::Bf8, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf8_fp8_w32_gfx12(...) host::wmma_mixed<host::Bf8, host::Fp8, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf8_bf8_w32_gfx12(...) host::wmma<host::Bf8, double>(__VA_ARGS__)
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12 host::wmma_iu8
#define __hip_atomic_fetch_add(at, value, order, scope) __atomic_fetch_add(at, value, order)
#define __hip_atomic_fetch_max(at, value, order, scope) host::fetch_max(at, value)
#define __hip_atomic_exchange(at, value, order, scope) __atomic_exchange_n(at, value, order)
#define __hip_atomic_load(at, order, scope) __atomic_load_n(at, order)
#ifndef __HIP_MEMORY_SCOPE_AGENT
#define __HIP_MEMORY_SCOPE_WORKGROUP 3
#define __HIP_MEMORY_SCOPE_AGENT 4
#endif
// Attributes of kernels that no other function may have.
#define amdgpu_flat_work_group_size(least, most)
#define amdgpu_waves_per_eu(least)

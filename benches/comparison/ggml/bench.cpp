// Times ggml's CPU products of quantised weights on request.
//
// In, a line each on stdin:
//   mul_mat TYPE repack|plain N K M MS            one GGML_OP_MUL_MAT, y[M, N] = x[M, K] w[N, K]^T
//   moe     TYPE repack|plain E TOP HIDDEN INNER M MS
//       GGML_OP_MUL_MAT_ID of the gate, up and down weights of E experts, each token with TOP of them
// Out, a line each: a JSON object with the median and the best seconds of the calls of MS milliseconds.
//
// x is f32. Each call takes another copy of its weight, all copies together being at least twice the last
// level of cache, or other experts (TOP different ones a token, all alike likely). A product is compared
// with that of its dequantised rows before it is timed. Threads: --threads N (default 2).
//
// Build: `build.sh` beside this file.

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

[[noreturn]] static void fail(const std::string & why) {
    fprintf(stderr, "bench: %s\n", why.c_str());
    exit(1);
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static ggml_type type_of(const std::string & name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++)
        if (const char * other = ggml_type_name((ggml_type) type); other && name == other) return (ggml_type) type;
    fail("no type " + name);
}

// The buffer type that stores weights in the order of the repacked kernels, or the plain one.
static ggml_backend_buffer_type_t buffer_type(bool repack) {
    if (!repack) return ggml_backend_cpu_buffer_type();
    auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts");
    auto * type = extra(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0));
    for (; type && *type; type++)
        if (!strcmp(ggml_backend_buft_name(*type), "CPU_REPACK")) return *type;
    fail("ggml was built without GGML_CPU_REPACK");
}

static std::mt19937 random_bits(1);
static std::vector<float> normal(size_t count, float deviation) {
    std::normal_distribution<float> draw(0, deviation);
    std::vector<float> values(count);
    for (float & value : values) value = draw(random_bits);
    return values;
}

// A context whose tensors lie in a buffer of their own.
struct Memory {
    ggml_context * context = ggml_init({ 1 << 20, nullptr, true });
    ggml_backend_buffer_t buffer = nullptr;
    ~Memory() {
        if (buffer) ggml_backend_buffer_free(buffer);
        ggml_free(context);
    }
    void allocate(ggml_backend_buffer_type_t type) {
        buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, type);
        if (!buffer) fail("no memory");
    }
};

// Copies of one random weight, [experts, rows, columns], and its bytes as quantised.
struct Weight {
    Memory memory;
    std::vector<ggml_tensor *> copies;
    std::vector<uint8_t> bytes;

    Weight(ggml_type type, bool repack, int64_t rows, int64_t columns, int64_t experts, int count) {
        for (int i = 0; i < count; i++)
            copies.push_back(experts == 1 ? ggml_new_tensor_2d(memory.context, type, columns, rows)
                                          : ggml_new_tensor_3d(memory.context, type, columns, rows, experts));
        bytes.resize(ggml_nbytes(copies[0]));
        // Drawing and quantising are slow: after some thousand random rows the same ones again.
        const int64_t all = rows * experts, drawn = std::min<int64_t>(all, 4096), size = ggml_row_size(type, columns);
        const auto values = normal(drawn * columns, 0.05f);
        ggml_quantize_chunk(type, values.data(), bytes.data(), 0, drawn, columns, nullptr);
        for (int64_t row = drawn; row < all; row++)
            memcpy(bytes.data() + row * size, bytes.data() + row % drawn * size, size);
        memory.allocate(buffer_type(repack));
        for (auto * copy : copies) ggml_backend_tensor_set(copy, bytes.data(), 0, bytes.size());
    }
};

// At least two copies, together twice the last level of cache (32 MiB where Linux does not say).
static int copies_of(double bytes) {
    double kib = 32768;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kib;
    return std::max(2, (int) std::ceil(2 * 1024 * kib / bytes));
}

// Graphs that take turns, and what they read besides weights and write.
struct Calls {
    Memory memory;
    std::vector<ggml_cgraph *> graphs;

    // `node` writes where `y` lies.
    static ggml_tensor * into(ggml_tensor * y, ggml_tensor * node) {
        ggml_backend_tensor_alloc(y->buffer, node, y->data);
        return node;
    }
    void graph(std::initializer_list<ggml_tensor *> nodes) {
        graphs.push_back(ggml_new_graph_custom(memory.context, 8, false));
        for (auto * node : nodes) {
            ggml_build_forward_expand(graphs.back(), node);
            if (!ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), node))
                fail("not supported here: " + std::string(ggml_type_name(node->src[0]->type)));
        }
    }
    void measure(ggml_backend_t backend, double milliseconds, size_t weight_bytes) {
        std::vector<double> times;
        const double start = now();
        for (size_t turn = 0; times.size() < 3 || now() - start < milliseconds / 1e3; turn++) {
            const double before = now();
            if (ggml_backend_graph_compute(backend, graphs[turn % graphs.size()])) fail("graph");
            if (turn >= graphs.size() || before - start > milliseconds / 5e3) times.push_back(now() - before);
        }
        std::sort(times.begin(), times.end());
        printf("{\"median\": %.9f, \"best\": %.9f, \"calls\": %zu, \"graphs\": %zu, \"bytes\": %zu}\n",
               times[times.size() / 2], times[0], times.size(), graphs.size(), weight_bytes);
        fflush(stdout);
    }
};

static void fill(ggml_tensor * x) {
    const auto values = normal(ggml_nelements(x), 1.0f);
    ggml_backend_tensor_set(x, values.data(), 0, ggml_nbytes(x));
}

// Compares some sums of a product with those of dequantised rows; the int8 of x costs about a hundredth.
static void check(const Weight & weight, const ggml_tensor * y, const ggml_tensor * x, const ggml_tensor * ids) {
    const int64_t rows = y->ne[0], tokens = ids ? y->ne[2] : y->ne[1], slots = ids ? y->ne[1] : 1;
    const ggml_type type = weight.copies[0]->type;
    double error = 0, scale = 0;
    for (int64_t i = 0; i < 64; i++) {
        const int64_t token = i * 7 % tokens, slot = i % slots, row = i * 997 % rows;
        const int64_t expert = ids ? ((const int32_t *) ids->data)[token * slots + slot] : 0;
        const int64_t from = ids ? token * x->ne[1] + slot % x->ne[1] : token;
        std::vector<float> w(x->ne[0]);
        const auto * stored = weight.bytes.data() + (expert * rows + row) * ggml_row_size(type, w.size());
        ggml_get_type_traits(type)->to_float(stored, w.data(), w.size());
        const double exact = std::inner_product(w.begin(), w.end(), (const float *) x->data + from * w.size(), 0.0);
        const double got = ((const float *) y->data)[(token * slots + slot) * rows + row];
        error += (got - exact) * (got - exact);
        scale += exact * exact;
    }
    if (!(error < 0.001 * scale)) fail("wrong product: relative error " + std::to_string(std::sqrt(error / scale)));
}

static std::map<std::string, std::unique_ptr<Weight>> weights;

// A weight that was asked for before, or a new one; `name` tells those of one shape apart.
static Weight & weight(std::string name, const std::string & type, bool repack, int64_t rows, int64_t columns,
                       int64_t experts, int count) {
    for (int64_t part : { (int64_t) repack, rows, columns, experts }) name += ' ' + std::to_string(part);
    auto & found = weights[type + ' ' + name];
    if (!found) found = std::make_unique<Weight>(type_of(type), repack, rows, columns, experts, count);
    return *found;
}

static void mul_mat(ggml_backend_t backend, std::istream & in, const std::string & type, bool repack) {
    int64_t n, k, m;
    double ms;
    if (!(in >> n >> k >> m >> ms)) fail("mul_mat TYPE repack|plain N K M MS");
    Weight & w = weight("mul_mat", type, repack, n, k, 1, copies_of(ggml_row_size(type_of(type), k) * n));
    Calls calls;
    ggml_tensor * x = ggml_new_tensor_2d(calls.memory.context, GGML_TYPE_F32, k, m);
    ggml_tensor * y = ggml_new_tensor_2d(calls.memory.context, GGML_TYPE_F32, n, m);
    calls.memory.allocate(ggml_backend_cpu_buffer_type());
    fill(x);
    for (auto * copy : w.copies)
        calls.graph({ Calls::into(y, ggml_mul_mat(calls.memory.context, copy, x)) });
    ggml_backend_graph_compute(backend, calls.graphs[0]);
    check(w, y, x, nullptr);
    calls.measure(backend, ms, w.bytes.size());
}

static void moe(ggml_backend_t backend, std::istream & in, const std::string & type, bool repack) {
    int64_t experts, top, hidden, inner, m;
    double ms;
    if (!(in >> experts >> top >> hidden >> inner >> m >> ms)) fail("moe TYPE repack|plain E TOP HIDDEN INNER M MS");
    Weight & gate = weight("gate", type, repack, inner, hidden, experts, 1);
    Weight & up = weight("up", type, repack, inner, hidden, experts, 1);
    Weight & down = weight("down", type, repack, hidden, inner, experts, 1);
    Calls calls;
    ggml_context * context = calls.memory.context;
    ggml_tensor * x = ggml_new_tensor_3d(context, GGML_TYPE_F32, hidden, 1, m);
    ggml_tensor * h = ggml_new_tensor_3d(context, GGML_TYPE_F32, inner, top, m);
    ggml_tensor * narrow = ggml_new_tensor_3d(context, GGML_TYPE_F32, inner, top, m);
    ggml_tensor * wide = ggml_new_tensor_3d(context, GGML_TYPE_F32, hidden, top, m);
    std::vector<ggml_tensor *> ids;
    for (int i = 0; i < 16; i++) ids.push_back(ggml_new_tensor_2d(context, GGML_TYPE_I32, top, m));
    calls.memory.allocate(ggml_backend_cpu_buffer_type());
    fill(x);
    fill(h);
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    for (auto * set : ids) {
        for (int64_t token = 0; token < m; token++) {
            std::shuffle(order.begin(), order.end(), random_bits);
            std::copy_n(order.begin(), top, (int32_t *) set->data + token * top);
        }
        auto product = [&](Weight & w, ggml_tensor * x, ggml_tensor * y) {
            return Calls::into(y, ggml_mul_mat_id(context, w.copies[0], x, set));
        };
        calls.graph({ product(gate, x, narrow), product(up, x, narrow), product(down, h, wide) });
    }
    ggml_backend_graph_compute(backend, calls.graphs[0]);
    check(up, narrow, x, ids[0]);
    check(down, wide, h, ids[0]);
    calls.measure(backend, ms, gate.bytes.size() + up.bytes.size() + down.bytes.size());
}

int main(int argc, char ** argv) {
    const int threads = argc == 3 && !strcmp(argv[1], "--threads") ? atoi(argv[2]) : 2;
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, threads);
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream in(line);
        std::string what, type, order;
        in >> what >> type >> order;
        if (what == "mul_mat") mul_mat(backend, in, type, order == "repack");
        else if (what == "moe") moe(backend, in, type, order == "repack");
        else fail("mul_mat or moe");
    }
    ggml_backend_free(backend);
}

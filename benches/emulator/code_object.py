"""An AMD code object: what is in it, and one launch of a kernel of it on tinygrad's emulator.

What a dispatch sets up is from LLVM's "User Guide for AMDGPU Backend": code object V5, kernel descriptor, initial
kernel execution state.
"""
import ctypes, struct

# The emulator's names for families of instruction sets.
FAMILY = {"gfx11": "rdna3", "gfx12": "rdna4", "gfx94": "cdna", "gfx95": "cdna"}


def family(target):
    return FAMILY[target[:5]]


def unpack(data, at=0):
    """A value in msgpack, and where the next one starts."""
    def whole(form):
        return struct.unpack_from(">" + form, data, at + 1)[0], at + 1 + struct.calcsize(form)
    def several(count, at, pairs):
        items = []
        for _ in range(count * (2 if pairs else 1)):
            item, at = unpack(data, at)
            items.append(item)
        return (dict(zip(items[::2], items[1::2])) if pairs else items), at
    def text(count, at):
        return data[at:at + count].decode(), at + count
    first = data[at]
    if first < 0x80: return first, at + 1
    if first < 0x90: return several(first & 15, at + 1, True)
    if first < 0xA0: return several(first & 15, at + 1, False)
    if first < 0xC0: return text(first & 31, at + 1)
    if first in (0xC2, 0xC3): return first == 0xC3, at + 1
    if first in (0xCC, 0xCD, 0xCE, 0xCF): return whole("BHIQ"[first - 0xCC])
    if first in (0xD9, 0xDA): return text(*whole("BH"[first - 0xD9]))
    if first in (0xDC, 0xDD): return several(*whole("HI"[first - 0xDC]), False)
    if first in (0xDE, 0xDF): return several(*whole("HI"[first - 0xDE]), True)
    raise ValueError(f"msgpack: {first:#x}")


class CodeObject:
    def __init__(self, elf):
        program, sections = struct.unpack_from("<QQ", elf, 32)
        programs = [struct.unpack_from("<IIQQQQQQ", elf, program + 56 * i) for i in range(struct.unpack_from("<H", elf, 56)[0])]
        headers = [struct.unpack_from("<IIQQQQIIQQ", elf, sections + 64 * i) for i in range(struct.unpack_from("<H", elf, 60)[0])]
        self.size = max(at + size for kind, _, _, at, _, _, size, _ in programs if kind == 1)
        self.memory = (ctypes.c_ubyte * (self.size + (64 << 10)))()     # instructions are fetched past the end
        self.base = -(-ctypes.addressof(self.memory) // 4096) * 4096
        self.symbols, self.kernels = {}, {}
        for kind, _, offset, at, _, size, _, _ in programs:
            if kind == 1:
                ctypes.memmove(self.base + at, elf[offset:offset + size], size)
            if kind == 4:
                name, length, _ = struct.unpack_from("<III", elf, offset)
                start = offset + 12 + -(-name // 4) * 4
                for kernel in unpack(elf[start:start + length])[0]["amdhsa.kernels"]:
                    self.kernels[kernel[".name"]] = kernel
        for kind, *rest in [(h[1], *h) for h in headers]:
            if kind == 11:
                texts = headers[rest[6]][4]
                for at in range(rest[4], rest[4] + rest[5], 24):
                    name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
                    self.symbols[elf[texts + name:elf.index(b"\0", texts + name)].decode()] = value

    def places(self, name):
        """Where a launch puts its arguments: offset and bytes of each."""
        kinds = ("by_value", "global_buffer")
        return [(a[".offset"], a[".size"]) for a in self.kernels[name].get(".args", []) if a[".value_kind"] in kinds]

    def facts(self, name):
        kernel = self.kernels[name]
        return (kernel[".max_flat_workgroup_size"], kernel[".group_segment_fixed_size"],
                kernel[".private_segment_fixed_size"], kernel[".vgpr_count"])

    def launch(self, emulator, target, name, grid, block, shared, arguments):
        """Runs a kernel. `arguments` are the bytes of its own arguments."""
        kernel, descriptor = self.kernels[name], self.base + self.symbols[name + ".kd"]
        data = ctypes.string_at(descriptor, 64)
        group, private, _, _, entry = struct.unpack_from("<IIIIq", data)
        rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIHH", data, 48)
        memory = (ctypes.c_ubyte * (kernel[".kernarg_segment_size"] + 512))()
        at = -(-ctypes.addressof(memory) // 256) * 256
        ctypes.memmove(at, arguments, len(arguments))
        hidden = {"hidden_grid_dims": 3}
        for axis in range(3):
            hidden["hidden_block_count_" + "xyz"[axis]] = grid[axis]
            hidden["hidden_group_size_" + "xyz"[axis]] = block[axis]
        for a in kernel.get(".args", []):
            if a[".value_kind"].startswith("hidden_"):
                value = hidden.get(a[".value_kind"], 0)
                ctypes.memmove(at + a[".offset"], value.to_bytes(a[".size"], "little"), a[".size"])
        packet = ctypes.create_string_buffer(struct.pack("<HHHHHHIIIIIQQ", 0, 3, *block, 0, *[g * b for g, b in zip(grid, block)], private, group + shared, 0, at), 64)
        def halves(address):
            return [address & 0xFFFFFFFF, address >> 32]
        registers = []
        for bit, values in enumerate(([0] * 4, halves(ctypes.addressof(packet)), [0, 0], halves(at), [0, 0], [0, 0], [private])):
            registers += values if properties >> bit & 1 else []
        count, first = preload & 0x7F, preload >> 7
        registers += struct.unpack(f"<{count}I", ctypes.string_at(at + 4 * first, 4 * count))
        # A kernel whose arguments are preloaded starts with 256 bytes for hardware that does not do it.
        start = descriptor + entry + (256 if count else 0)
        granules = -(-(group + shared) // 512)
        rsrc2 = rsrc2 & ~(0x1FF << 15) | granules << 15
        emulator.denormals = rsrc1 >> 16 & 15
        emulator.run_asm(start, self.size, *grid, *block, at, rsrc2, private, family(target), registers)

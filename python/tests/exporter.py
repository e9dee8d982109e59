"""An exporter of DLPack that says whatever a test wants, made of the C structures."""

import ctypes

CPU, FLOAT = 1, 2


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Array(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("array", Array), ("context", ctypes.c_void_p), ("deleter", DELETER)]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """Exports `shape` of float32 (or of `bits`) from `offset` bytes beyond `address` on, once.

    `given_back` counts the calls of the deleter.
    """

    def __init__(self, address, shape, *, offset=0, strides=None, bits=32, lanes=1):
        self.given_back = 0
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = strides and (ctypes.c_int64 * len(shape))(*strides)
        self.deleter = DELETER(self.delete)
        array = Array(
            address,
            Device(CPU, 0),
            len(shape),
            Type(FLOAT, bits, lanes),
            ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64)),
            offset,
        )
        self.managed = Managed(array, None, self.deleter)

    def delete(self, _):
        self.given_back += 1

    def __dlpack__(self, **_):
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self):
        return (CPU, 0)

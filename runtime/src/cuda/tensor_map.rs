//! The driver's call for a tensor map.

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUtensorMapDataType as Type, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle as RawSwizzle,
};

use super::Driver;
use crate::driver::TensorShape;
use crate::driver::tensor_map::RawTensorMap;
use crate::source::{Swizzle, TensorWord};

const fn raw_swizzle(swizzle: Swizzle) -> RawSwizzle {
    match swizzle {
        Swizzle::None => RawSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        Swizzle::B32 => RawSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        Swizzle::B64 => RawSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        Swizzle::B128 => RawSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    }
}

const fn raw_word(word: TensorWord) -> Type {
    match word {
        TensorWord::U8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        TensorWord::U16 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        TensorWord::U32 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
    }
}

/// Encodes the map of a tensor whose shape has been checked. Every element of a box is copied, and what
/// is beyond the tensor is 0.
pub(super) fn encode(
    driver: &Driver,
    map: &mut RawTensorMap,
    address: u64,
    shape: &TensorShape,
) -> i32 {
    let ones = [1u32; 5];
    // SAFETY: the lists have the lengths that the rank says; the address is only written into the map.
    unsafe {
        (driver.own.cuTensorMapEncodeTiled)(
            map,
            raw_word(shape.word),
            shape.dims.len() as u32,
            address as *mut c_void,
            shape.dims.as_ptr(),
            shape.strides.as_ptr(),
            shape.box_dims.as_ptr(),
            ones.as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            raw_swizzle(shape.swizzle),
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
}

//! The CPU with the decoder of a declared scheme, as a backend.

use std::marker::PhantomData;

use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::decoder::DynDecoder;
use quantloom_runtime::declared::Declared;
use quantloom_runtime::op::{Op, ProductError};
use quantloom_runtime::weight_data::WeightData;

/// Prepares weights of one declared scheme.
pub(super) struct WithDecoder<S>(CpuDevice, PhantomData<S>);

impl<S> WithDecoder<S> {
    pub(super) fn new(device: CpuDevice) -> Self {
        Self(device, PhantomData)
    }
}

impl<S: Declared> Backend for WithDecoder<S> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn prepare_weight(&self, weight: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError> {
        let decoder: &'static dyn DynDecoder = S::DECODER;
        let data = WeightData::unpacked(weight.scheme(), weight.unpack()?);
        self.0.prepare_weight(&data.with_extra(&decoder))
    }
}

//! Sources of kernels whose texts the drivers of this test can run: all of them are `vector_add`.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Recode};
use quantloom_dsl::{Scheme, parse, parse_layout};
use quantloom_runtime::gpu::{
    Arrangement, ChoiceSource, ChosenKernel, Form, NativeBuffer, Products, Request,
};
use quantloom_runtime::source::{
    Access, BufferRole, Count, KernelKey, KernelSource, KernelText, LaunchRule, Parameter, Refusal,
    Schedule, Work,
};

use crate::scenarios::Fake;

/// The text of `vector_add`, c = a + b in words, with its rule.
pub(crate) fn text<D: Fake>() -> KernelText<'static> {
    let words = |name, access| Parameter::buffer(name, access, Count::N * 4);
    let parameters = vec![
        words("a", Access::Read),
        words("b", Access::Read),
        words("c", Access::Write),
        Parameter::size("n", Count::N),
    ];
    KernelText {
        entry: "vector_add".into(),
        text: D::TEXT.into(),
        rule: Cow::Owned(LaunchRule::plain(Count::N.ceil_div(256), 256, parameters)),
    }
}

pub(crate) fn scheme() -> Scheme {
    parse("W4 { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }")
        .unwrap()
}

pub(crate) fn key(target: &str) -> KernelKey {
    let scheme = scheme();
    KernelKey {
        work: Work::product(&scheme, &scheme.activations[0], Number::Float(BF16)),
        schedule: Schedule::new("decode", [("rows", 2)]),
        target: target.to_owned(),
    }
}

/// Gives one text for every key and counts how often it is asked.
pub(crate) struct Counting<D>(pub(crate) AtomicU32, pub(crate) PhantomData<D>);

impl<D: Fake> KernelSource for Counting<D> {
    fn text(&self, _: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(text::<D>())
    }
}

pub(crate) struct Refusing;

impl KernelSource for Refusing {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let known = vec!["sm_80".to_owned()];
        Err(Refusal::Target { target: key.target.clone(), known })
    }
}

/// "Products" of this driver, which knows no matrices: y = w + x, words of the packed codes and of
/// pairs of x, a row of x a launch.
pub(crate) struct Sums<D>(pub(crate) PhantomData<D>);

impl<D: Fake> KernelSource for Sums<D> {
    fn text(&self, _: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let parameters = vec![
            Parameter::of(BufferRole::Codes, Access::Read, Count::K * 2),
            Parameter::of(BufferRole::X, Access::Read, Count::M * Count::K * 2),
            Parameter::of(BufferRole::Y, Access::Write, Count::M * Count::N * 2),
            Parameter::size("n", Count::K.ceil_div(2)),
        ];
        let rule = LaunchRule::plain(Count::K.ceil_div(512), 256, parameters);
        Ok(KernelText { rule: Cow::Owned(rule), ..text::<D>() })
    }
}

impl<D: Fake> Products for Sums<D> {
    fn operand(&self, _: &Request<'_>, _: Option<&KernelKey>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(Vec::new())
    }

    fn arrangement(&self, _: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Ok(None)
    }

    fn native(&self, _: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        let layout = parse_layout("u32 [k:8 | k, n]", Component::Code).unwrap();
        let granularity =
            Granularity { bits: 4, rows: GroupSize::Each(1), cols: GroupSize::Each(1) };
        let (component, form) = (Component::Code, Form::Codes(Recode::Keep));
        Ok(vec![NativeBuffer { role: BufferRole::Codes, component, layout, granularity, form }])
    }

    fn choose(&self, request: &Request<'_>, _: u64) -> Result<ChosenKernel, Refusal> {
        Ok(ChosenKernel {
            key: key(request.target),
            tokens: 1,
            compute_dtype: "in bf16".to_owned(),
            sums: quantloom_runtime::accumulation::Sums::Matrix,
            decoded: quantloom_runtime::accumulation::Decoded::default(),
            by: ChoiceSource::Model,
        })
    }
}

/// "Products" whose operand is x + x, words of pairs, and y = w + operand; the product has a counter too.
pub(crate) struct Doubled<D>(pub(crate) PhantomData<D>);

impl<D: Fake> KernelSource for Doubled<D> {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let x = || Parameter::of(BufferRole::X, Access::Read, Count::M * Count::K * 2);
        let words = Parameter::size("n", Count::K.ceil_div(2));
        let parameters = match key.work {
            Work::Operand { .. } => {
                let made =
                    Parameter::of(BufferRole::Operand, Access::Write, Count::M * Count::K * 2);
                vec![x(), x(), made, words]
            }
            _ => vec![
                Parameter::of(BufferRole::Codes, Access::Read, Count::K * 2),
                x(),
                Parameter::of(BufferRole::Y, Access::Write, Count::M * Count::N * 2),
                words,
                Parameter::of(BufferRole::Arrivals, Access::ReadWrite, 4),
            ],
        };
        let rule = LaunchRule::plain(Count::K.ceil_div(512), 256, parameters);
        Ok(KernelText { rule: Cow::Owned(rule), ..text::<D>() })
    }
}

impl<D: Fake> Products for Doubled<D> {
    fn operand(
        &self,
        request: &Request<'_>,
        _: Option<&KernelKey>,
    ) -> Result<Vec<KernelKey>, Refusal> {
        let work = Work::operand(&scheme(), &scheme().activations[0], Number::Float(BF16));
        Ok(vec![KernelKey { work, schedule: Schedule::new("double", []), ..key(request.target) }])
    }

    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Sums(self.0).arrangement(request)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Sums(self.0).native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal> {
        Sums(self.0).choose(request, tokens)
    }
}

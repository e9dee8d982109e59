//! What only HIP has: a compiler in a library of its own, and a hardware that counts threads in 32 bits.

use std::borrow::Cow;

use quantloom_runtime::hip::{Device, HipError, Libraries, Stream, load};
use quantloom_runtime::image_cache::ImageCache;
use quantloom_runtime::source::{Count, KernelText, LaunchRule, Parameter, ProblemSize};

use crate::scenarios::{Engine, Fake};
use crate::sources::text;

impl Fake for Libraries {
    const TEXT: &'static str = "extern \"C\" __attribute__((global)) void vector_add(
    const unsigned *a, const unsigned *b, unsigned *c, unsigned n)
{
    const unsigned at = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (at < n) c[at] = a[at] + b[at];
}
";
    const TARGETS: [&'static str; 2] = ["gfx942", "gfx950"];
    const LIBRARY: &'static str = "libamdhip64.so.7";
    const CALLS: [&'static str; 7] = [
        "hipRuntimeGetVersion",
        "hipStreamBeginCapture",
        "hipStreamEndCapture",
        "hipGraphInstantiateWithFlags",
        "hipGraphLaunch",
        "hipGraphDestroy",
        "hipGraphExecDestroy",
    ];

    /// Device 0 is the thread's from the beginning.
    fn bind(_: &Engine<Self>, _: &Device, _: bool) {}

    fn own(scenario: &str) -> Result<(), HipError> {
        match scenario {
            "compiler" | "tour" => {
                let (major, minor) = Libraries::get()?.compiler_version();
                println!("hiprtc {major}.{minor}");
                Ok(())
            }
            "wide" => wide(),
            _ => panic!("no scenario {scenario}"),
        }
    }
}

/// A grid that the hardware cannot count.
fn wide() -> Result<(), HipError> {
    let rule = LaunchRule::plain(Count::N, 256, vec![Parameter::size("n", Count::N)]);
    let wide = KernelText { rule: Cow::Owned(rule), ..text::<Libraries>() };
    let (kernel, _) = load(&Device::new(0)?, &ImageCache::off(), &wide)?;
    let stream = Stream::new(kernel.context())?;
    // SAFETY: the launch is refused.
    unsafe { kernel.launch(&stream, &ProblemSize::new(1, 1 << 24, 1, 304), false, &[]) }
}

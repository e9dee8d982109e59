//! Bits of a buffer at a bit address, and work on parts of a buffer in parallel.

/// Calls `work` on every `size` bytes of a buffer, in parallel where the crate has threads.
pub(super) fn each_part(bytes: &mut [u8], size: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    #[cfg(feature = "parallel")]
    {
        use rayon::prelude::*;
        bytes.par_chunks_mut(size).enumerate().for_each(|(part, bytes)| work(part, bytes));
    }
    #[cfg(not(feature = "parallel"))]
    bytes.chunks_mut(size).enumerate().for_each(|(part, bytes)| work(part, bytes));
}

/// Reads up to 56 bits at a bit address.
///
/// # Panics
/// If the bits are not inside the buffer.
#[inline]
pub fn read_bits(bytes: &[u8], address: u64, bits: u32) -> u64 {
    let (byte, shift) = ((address / 8) as usize, (address % 8) as u32);
    let word = match bytes.get(byte..byte + 8) {
        Some(eight) => u64::from_le_bytes(eight.try_into().unwrap_or_default()),
        None => {
            let mut eight = [0; 8];
            let rest = &bytes[byte..];
            eight[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(eight)
        }
    };
    word >> shift & ((1u64 << bits) - 1)
}

/// ORs up to 56 bits into a buffer at a bit address.
///
/// # Panics
/// If a set bit is not inside the buffer.
#[inline]
pub fn write_bits(bytes: &mut [u8], address: u64, bits: u32, value: u64) {
    debug_assert!(bits <= 56 && value >> bits == 0);
    let (byte, shift) = ((address / 8) as usize, (address % 8) as u32);
    let mut rest = value << shift;
    let mut at = byte;
    while rest != 0 {
        bytes[at] |= rest as u8;
        rest >>= 8;
        at += 1;
    }
}

//! Copies of what is not looked at again soon, by non-temporal stores.
//!
//! An ordinary store reads the line that it changes into the processor's cache first, and drives something else out. What a
//! large write brings is next read by the thread that writes it to the device, long after it has left the cache again: a stream of
//! stores goes to memory past it.

/// From so many bytes on a copy goes past the caches. Shorter values are encoded and checksummed for the log while they are still there.
const STREAM_BYTES_MIN: usize = 64 * 1024;

/// Copies bytes into memory of the same length that nobody reads soon.
///
/// # Panics
/// If the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "both sides of a copy are of one length");
    if from.len() < STREAM_BYTES_MIN {
        to.copy_from_slice(from);
    } else {
        stream(to, from);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// Whole lines by stores that go past the caches, what lies in front of and behind them by others.
#[cfg(target_arch = "x86_64")]
fn stream(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// What the processor writes to memory in one piece.
    const LINE: usize = 64;

    let front = to.as_ptr().align_offset(LINE).min(to.len());
    let ((to_front, to), (from_front, from)) = (to.split_at_mut(front), from.split_at(front));
    to_front.copy_from_slice(from_front);
    let (mut to_lines, mut from_lines) = (to.chunks_exact_mut(LINE), from.chunks_exact(LINE));
    for (to, from) in to_lines.by_ref().zip(from_lines.by_ref()) {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        for part in 0..LINE / size_of::<__m128i>() {
            // SAFETY: all parts lie inside the line; `to` is aligned to it, and of `from` nothing is asked.
            unsafe { _mm_stream_si128(to.add(part), _mm_loadu_si128(from.add(part))) };
        }
    }
    // SAFETY: every processor of this kind has it. It puts the stores above before all that follow it, which others may see.
    unsafe { _mm_sfence() };
    to_lines.into_remainder().copy_from_slice(from_lines.remainder());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_a_copy_wherever_it_begins_and_ends() {
        let from: Vec<u8> = (0..2000_u32).map(|number| (number * 7 % 251) as u8).collect();
        for start in (0..130).step_by(3) {
            for length in [0, 1, 15, 63, 64, 65, 127, 128, 129, 1000, 1500] {
                let mut to = vec![0xee; 2000];
                stream(&mut to[start..start + length], &from[start / 2..start / 2 + length]);
                let outside = to[..start].iter().chain(&to[start + length..]);
                assert!(outside.copied().all(|byte| byte == 0xee), "{start} {length}");
                assert_eq!(to[start..start + length], from[start / 2..start / 2 + length]);
            }
        }
    }

    #[test]
    fn long_and_short_copies_are_the_same() {
        for length in [0, STREAM_BYTES_MIN - 1, STREAM_BYTES_MIN, STREAM_BYTES_MIN + 77] {
            let from: Vec<u8> = (0..length).map(|number| (number % 253) as u8).collect();
            let mut to = vec![0; length];
            copy(&mut to, &from);
            assert!(to == from, "{length}");
        }
    }
}

//! What /dev/fuse might bring.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The length in front would turn nearly every change away.
    let mut request = data.to_vec();
    if let Some(length) = request.get_mut(..4) {
        length.copy_from_slice(&(data.len() as u32).to_ne_bytes());
    }
    pando_fuse::decode_anything(&request);
});

//! Streams of snapshots: whatever is read as a frame is written so that it is read as the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::send_stream::{
    Chain, FRAME_HEADER_LENGTH, Frame, FrameHeader, PREAMBLE_LENGTH, decode_preamble,
};

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    if data.len() < PREAMBLE_LENGTH {
        let _ = decode_preamble(&data);
        return;
    }
    let _ = decode_preamble(&data.slice(..PREAMBLE_LENGTH));
    let mut rest = data.slice(PREAMBLE_LENGTH..);
    let mut chain = Chain::default();
    while rest.len() >= FRAME_HEADER_LENGTH {
        let Ok(header) = FrameHeader::decode(&rest.split_to(FRAME_HEADER_LENGTH)) else { return };
        let payload = rest.split_to(rest.len().min(header.payload_length as usize));
        // Changed bytes have another checksum, and what is behind it must be reached all the same.
        let _ = Frame::decode(&header, &payload, &mut chain.clone());
        let Ok(frame) = Frame::decode_payload(header.kind(), &payload) else { return };
        let bytes = Bytes::from(frame.encode(&mut chain.clone()));
        let header = FrameHeader::decode(&bytes.slice(..FRAME_HEADER_LENGTH)).unwrap();
        let again = Frame::decode(&header, &bytes.slice(FRAME_HEADER_LENGTH..), &mut chain);
        assert_eq!(again, Ok(frame));
    }
});

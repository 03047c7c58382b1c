//! Batches with right checksums and any contents.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::checksum::checksum;
use pando_format::head::reseal;
use pando_format::log_batch::BATCH_HEADER_LENGTH;
use pando_format::{BatchHeader, Structure, decode_batch};

fuzz_target!(|data: &[u8]| {
    let mut data = data.to_vec();
    reseal(Structure::LogBatch, &mut data);
    let Ok(mut header) = BatchHeader::decode(&Bytes::from(data.clone())) else { return };
    assert_eq!(BatchHeader::decode(&Bytes::from(header.encode())).as_ref(), Ok(&header));

    // As much payload as there is, and its checksum.
    let payload = data.len().saturating_sub(BATCH_HEADER_LENGTH);
    header.payload_length = header.payload_length.min(payload as u32);
    let end = BATCH_HEADER_LENGTH + header.payload_length as usize;
    header.payload_checksum = checksum(Structure::LogPayload, &data[BATCH_HEADER_LENGTH..end]);
    data[..BATCH_HEADER_LENGTH].copy_from_slice(&header.encode());
    let data = Bytes::from(data);
    assert_eq!(BatchHeader::decode(&data).as_ref(), Ok(&header));
    if let Ok((decoded, _)) = decode_batch(&data) {
        assert_eq!(decoded, header);
    }
});

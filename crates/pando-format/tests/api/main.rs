//! The formats by what their crate offers. One program, so that it is linked once.

mod common;
mod damage;
mod fixtures;
mod layout;
mod round_trip;

//! Simulations of whole lives of a volume: crashes, faults, and a model beside it. One program, so that each core has work until the last of them ends.

mod concurrent;
mod crash;
mod faults;
mod model;

//! Makes a failing sequence short: takes away what it fails without (delta debugging).

use crate::workload::Step;

/// How often it is tried whether a shorter sequence fails.
const TRIES_MAX: usize = 600;

/// The shortest sequence found that still fails.
pub fn shrink(steps: &[Step], mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut tries = 0;
    let mut fails = |steps: &[Step]| {
        tries += 1;
        tries <= TRIES_MAX && fails(steps)
    };
    let mut steps = failing_prefix(steps, &mut fails);
    let mut chunk = steps.len() / 2;
    while chunk > 0 {
        let before = steps.len();
        // From the end: what came long before the failure is more likely to be needed for it.
        let mut end = steps.len();
        while end > 0 {
            let start = end.saturating_sub(chunk);
            let shorter = [&steps[..start], &steps[end..]].concat();
            if fails(&shorter) {
                steps = shorter;
            }
            end = start;
        }
        // At the finest grain, as long as something still goes: what could not be left out before may be now.
        if chunk > 1 || steps.len() == before {
            chunk /= 2;
        }
    }
    for place in 0..steps.len() {
        shrink_record(&mut steps, place, &mut fails);
    }
    steps
}

/// The shortest prefix that fails, if every longer one does, too; else one that fails.
fn failing_prefix(steps: &[Step], fails: &mut impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let (mut passes, mut fails_at) = (0, steps.len());
    while passes + 1 < fails_at {
        let middle = passes.midpoint(fails_at);
        if fails(&steps[..middle]) {
            fails_at = middle;
        } else {
            passes = middle;
        }
    }
    steps[..fails_at].to_vec()
}

/// Takes operations out of one record.
fn shrink_record(steps: &mut [Step], place: usize, fails: &mut impl FnMut(&[Step]) -> bool) {
    let mut operation = 0;
    while let Step::Apply(operations) = &steps[place] {
        if operations.len() < 2 || operation >= operations.len() {
            return;
        }
        let mut fewer = operations.clone();
        fewer.remove(operation);
        let old = std::mem::replace(&mut steps[place], Step::Apply(fewer));
        if !fails(steps) {
            steps[place] = old;
            operation += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Mix, generate};

    #[test]
    fn only_what_is_needed_is_left() {
        let mut steps = generate(7, &Mix { steps: 300, ..Mix::QUERIES });
        // What the generator puts in is its own affair; this test needs two of them.
        steps.insert(100, Step::Sync);
        steps.insert(200, Step::Sync);
        let needed = |steps: &[Step]| {
            let syncs = steps.iter().filter(|step| matches!(step, Step::Sync)).count();
            let operations: usize =
                steps.iter().map(|s| if let Step::Apply(o) = s { o.len() } else { 0 }).sum();
            syncs >= 2 && operations >= 5
        };
        assert!(needed(&steps));
        let short = shrink(&steps, needed);
        assert!(needed(&short));
        let operations: usize = short.iter().map(|s| if let Step::Apply(o) = s { o.len() } else { 0 }).sum();
        let others = short.iter().filter(|step| !matches!(step, Step::Apply(_))).count();
        assert_eq!((operations, others), (5, 2));
    }
}

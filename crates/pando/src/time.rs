//! Times of files in text: always UTC, since a volume has no time zone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time in UTC, of the proleptic Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    year: i64,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
    nanosecond: u32,
}

/// Seconds since 1970 (negative before) and the nanoseconds behind them (0 to 999 999 999).
pub fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            match before.subsec_nanos() {
                0 => (0_i64.wrapping_sub_unsigned(before.as_secs()), 0),
                nanoseconds => (-(before.as_secs() as i64) - 1, 1_000_000_000 - nanoseconds),
            }
        }
    }
}

/// The time that many seconds and nanoseconds after the start of 1970; the start itself if it cannot be expressed.
pub fn from_epoch(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

impl From<SystemTime> for DateTime {
    fn from(time: SystemTime) -> Self {
        let (seconds, nanosecond) = since_epoch(time);
        let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) as u32);
        let (year, month, day) = date(days);
        Self {
            year,
            month,
            day,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            nanosecond,
        }
    }
}

/// Year, month and day of a day counted from 1970-01-01. Years are counted from March here, so that the leap day is
/// the last of its year; 400 years are always 146 097 days.
fn date(days_since_1970: i64) -> (i64, u32, u32) {
    let days = days_since_1970 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

impl DateTime {
    /// `2026-11-21 21:30`, for listings.
    pub fn to_minute(self) -> String {
        format!("{:04}-{:02}-{:02} {:02}:{:02}", self.year, self.month, self.day, self.hour, self.minute)
    }

    /// `2026-11-21T21:30:05.000000001Z`, for JSON and details.
    pub fn exact(self) -> String {
        let Self { year, month, day, hour, minute, second, nanosecond } = self;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanosecond:09}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000000007Z"),
            (1_795_296_605, "2026-11-21T21:30:05.000000007Z"),
            (-1, "1969-12-31T23:59:59.000000007Z"),
            (-2_208_988_800, "1900-01-01T00:00:00.000000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000007Z"),
        ] {
            let time = from_epoch(seconds, 7);
            assert_eq!(DateTime::from(time).exact(), text);
            assert_eq!(since_epoch(time), (seconds, 7));
        }
    }
}

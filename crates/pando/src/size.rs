//! Sizes as people write and read them. Suffixes are binary: `K` is 1024 bytes, `M` 1024 of those, and so on.

const SUFFIXES: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Why a text is no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeError {
    /// No number, or something behind it that is no suffix.
    NotASize,
    /// More than 2^63 - 1 bytes.
    TooLarge,
}

impl std::fmt::Display for SizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotASize => "write a number with K, M, G, T or P behind it, such as 512M or 1.5T",
            Self::TooLarge => "more than 8 EiB",
        })
    }
}

impl std::error::Error for SizeError {}

/// Bytes of a text such as `4096`, `512M`, `4G`, `4GiB` or `1.5T`. Fractions of a byte are dropped.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let number_length = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_length);
    let unit = unit(suffix).ok_or(SizeError::NotASize)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(fraction) || number.ends_with('.') {
        return Err(SizeError::NotASize);
    }
    let whole: u128 = whole.parse().map_err(|_| SizeError::TooLarge)?;
    // Nine digits are finer than any size needs, and keep the product far below 2^128.
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let fraction: u128 = fraction.parse().map_err(|_| SizeError::NotASize)?;
    let bytes = whole.checked_mul(unit).ok_or(SizeError::TooLarge)? + fraction * unit / 1_000_000_000;
    match u64::try_from(bytes) {
        Ok(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
        _ => Err(SizeError::TooLarge),
    }
}

/// Bytes a suffix stands for: nothing or `B` for one; `K`, `KB` and `KiB`, in either case, for 1024.
fn unit(suffix: &str) -> Option<u128> {
    let upper = suffix.trim().to_ascii_uppercase();
    if upper.is_empty() || upper == "B" {
        return Some(1);
    }
    let mut letters = upper.chars();
    let power = SUFFIXES.iter().position(|&s| Some(s) == letters.clone().next())? + 1;
    letters.next();
    matches!(letters.as_str(), "" | "B" | "IB").then(|| 1024u128.pow(power as u32))
}

/// A size for people: three or so digits and a suffix, `0`, `999`, `1.5K`, `4.0G`.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64;
    let mut suffix = ' ';
    for next in SUFFIXES {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        suffix = next;
    }
    if value < 9.95 { format!("{value:.1}{suffix}") } else { format!("{value:.0}{suffix}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_may_have_fractions() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17B", 17),
            ("4G", 4 << 30),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("1.5T", 3 << 39),
            ("4GiB", 4 << 30),
            ("4 GB", 4 << 30),
            ("0.5K", 512),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "G", "-1", "1.", ".5G", "1..2", "1.2.3", "4X", "4GG", "4Gi", "1e3", "ß", "4ß"] {
            assert_eq!(parse(text), Err(SizeError::NotASize), "{text}");
        }
        for text in ["8E", "16E", "99999999999999999999999999999999999999999", "9223372036854775808"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn people_read_three_digits() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1536, "1.5K"),
            (4 << 30, "4.0G"),
            (10 << 20, "10M"),
            ((1 << 20) - 1, "1.0M"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}

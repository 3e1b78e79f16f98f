//! PBM, PGM and PPM, plain and binary.
//!
//! Greys of more than 8 bits are scaled to 16 and then cut off above 255, as in the reference: most become white. The
//! other formats under the letter P that the reference reads (`Pf`, `P0CMYK`, `Py...`) are not decoded here.

use super::orientation::Orientation;
use super::raw::{Layout, Order, Rows};
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Size};

const SCRATCH_BYTES: usize = 16 << 10;
/// The longest of the names that the format has, as `PyRGBA`.
const MOST_MAGIC_BYTES: usize = 6;
/// More digits than that are refused.
const MAX_TOKEN_BYTES: usize = 10;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// Bits, or bytes that need no scaling.
    Rows(Rows),
    /// Binary values up to a maximum.
    Values { at: usize, kind: Kind, most: u32 },
    /// Digits.
    Digits { at: usize, kind: Kind, most: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bits,
    Grey,
    Rgb,
}

impl Kind {
    fn values_per_pixel(self) -> usize {
        if self == Self::Rgb { 3 } else { 1 }
    }

    /// The byte that a value becomes.
    fn byte(self, value: u32, most: u32) -> u8 {
        // Wide greys become 16-bit ones, and those are cut off.
        let scale = if self == Self::Grey && most > 255 { 65_535.0 } else { 255.0 };
        (f64::from(value) / f64::from(most) * scale).round_ties_even().min(255.0) as u8
    }
}

/// `None` for the kinds that are not decoded here.
pub(super) fn probe(bytes: &[u8]) -> Result<Option<Found>, DecodeError> {
    // Behind the longest of names there need not be a space.
    let magic = bytes.split(|&byte| is_space(byte)).next().unwrap_or_default();
    let magic = &magic[..magic.len().min(MOST_MAGIC_BYTES)];
    let (kind, plain) = match magic {
        b"P1" => (Kind::Bits, true),
        b"P2" => (Kind::Grey, true),
        b"P3" => (Kind::Rgb, true),
        b"P4" => (Kind::Bits, false),
        b"P5" => (Kind::Grey, false),
        b"P6" => (Kind::Rgb, false),
        b"Pf" | b"P0CMYK" | b"PyP" | b"PyRGBA" | b"PyCMYK" => return Ok(None),
        _ => return Err(DecodeError::Unsupported { name: None }),
    };
    let mut tokens = Tokens { bytes, at: (magic.len() + 1).min(bytes.len()) };
    let width = tokens.number()?;
    let height = tokens.number()?;
    let size = Size { height, width };
    if size.pixels() == 0 {
        return Err(broken("no pixels"));
    }
    let most = if kind == Kind::Bits { 1 } else { tokens.number()? };
    if !(1..65_536).contains(&most) {
        return Err(broken("a maximum out of range"));
    }
    let at = tokens.at;
    let rows = |layout: Layout| Plan::Rows(Rows { stride: layout.row_bytes(width), layout, at, bottom_up: false });
    let plan = match (plain, kind, most) {
        (true, ..) => Plan::Digits { at, kind, most },
        (false, Kind::Bits, _) => rows(Layout::bits(255, 0)),
        (false, Kind::Grey, 255) => rows(Layout::grey()),
        (false, Kind::Rgb, 255) => rows(Layout::Bytes(Order::Rgb)),
        _ => Plan::Values { at, kind, most },
    };
    let found =
        Found { size, orientation: Orientation::default(), scratch_bytes: SCRATCH_BYTES, plan: AnyPlan::Pnm(plan) };
    Ok(Some(found))
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let truncated = || DecodeError::Truncated(Format::Pnm);
    match *plan {
        Plan::Rows(ref rows) => rows.decode(bytes, size.width, out).ok_or_else(truncated),
        Plan::Values { at, kind, most } => {
            let value_bytes = if most > 255 { 2 } else { 1 };
            let wanted = out.len() / 3 * kind.values_per_pixel() * value_bytes;
            let stored = bytes.get(at..at.saturating_add(wanted)).ok_or_else(truncated)?;
            let values =
                stored.chunks_exact(value_bytes).map(|value| value.iter().fold(0, |sum, &b| sum << 8 | u32::from(b)));
            fill(out, kind, values.map(|value| Ok(kind.byte(value, most))))
        }
        Plan::Digits { at, kind: Kind::Bits, .. } => decode_bits(&bytes[at..], out),
        Plan::Digits { at, kind, most } => decode_numbers(&bytes[at..], kind, most, out),
    }
}

/// A digit a pixel. The reference reads blocks, and all of a block has to be digits, also beyond the picture.
fn decode_bits(bytes: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    let bit = |digit: u8| match digit {
        b'0' => Ok(255),
        b'1' => Ok(0),
        _ => Err(broken("a digit that is no bit")),
    };
    let mut digits = uncommented(bytes).filter(|(_, byte)| !is_space(*byte));
    let mut last = 0;
    let values = digits.by_ref().map(|(at, digit)| {
        last = at;
        bit(digit)
    });
    fill(out, Kind::Bits, values)?;
    let block_end = block_end(last);
    digits.take_while(|(at, _)| *at < block_end).try_for_each(|(_, digit)| bit(digit).map(drop))
}

fn decode_numbers(bytes: &[u8], kind: Kind, most: u32, out: &mut [u8]) -> Result<(), DecodeError> {
    let mut rest = uncommented(bytes).peekable();
    let mut token = Vec::new();
    let values = std::iter::from_fn(|| {
        while rest.next_if(|(_, byte)| is_space(*byte)).is_some() {}
        token.clear();
        while let Some((_, byte)) = rest.next_if(|(_, byte)| !is_space(*byte)) {
            token.push(byte);
            if token.len() > MAX_TOKEN_BYTES {
                return Some(Err(broken("too many digits")));
            }
        }
        if token.is_empty() {
            return None;
        }
        let value = number(&token).filter(|value| *value <= most);
        Some(value.map(|value| kind.byte(value, most)).ok_or_else(|| broken("a value out of range")))
    });
    fill(out, kind, values)?;
    // Of a block that does not end with a space, the reference looks at the last word first.
    let Some(&(after, _)) = rest.peek() else { return Ok(()) };
    let block = &bytes[after..block_end(after).min(bytes.len())];
    let last_word = uncommented(block).fold(0, |length, (_, byte)| if is_space(byte) { 0 } else { length + 1 });
    if last_word > MAX_TOKEN_BYTES { Err(broken("too many digits")) } else { Ok(()) }
}

/// Where the block ends that the byte at `at` is in, of those in which the reference reads digits.
fn block_end(at: usize) -> usize {
    const BLOCK_BYTES: usize = 1 << 20;
    (at / BLOCK_BYTES + 1) * BLOCK_BYTES
}

/// Writes values, one or three a pixel, until `out` is full.
fn fill(
    out: &mut [u8],
    kind: Kind,
    mut values: impl Iterator<Item = Result<u8, DecodeError>>,
) -> Result<(), DecodeError> {
    let mut next = || values.next().unwrap_or(Err(DecodeError::Truncated(Format::Pnm)));
    for pixel in out.as_chunks_mut::<3>().0 {
        *pixel = match kind {
            Kind::Rgb => [next()?, next()?, next()?],
            Kind::Bits | Kind::Grey => [next()?; 3],
        };
    }
    Ok(())
}

fn broken(cause: &'static str) -> DecodeError {
    DecodeError::corrupt(Format::Pnm, cause)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Bytes and where they are, without comments, each of which goes from a hash to the end of its line, that end included.
fn uncommented(bytes: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let mut in_comment = false;
    bytes.iter().copied().enumerate().filter(move |&(_, byte)| {
        let was_in_comment = in_comment;
        in_comment = if in_comment { !matches!(byte, b'\n' | b'\r') } else { byte == b'#' };
        !was_in_comment && !in_comment
    })
}

/// A number as Python reads it: with a sign, and single underscores between its digits. None below 0.
fn number(token: &[u8]) -> Option<u32> {
    let (is_negative, digits) = match token {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let value = digits.split(|byte| *byte == b'_').try_fold(0u64, |value, group| {
        let digits = std::str::from_utf8(group).ok().filter(|_| group.iter().all(u8::is_ascii_digit))?;
        Some(value * 10u64.pow(digits.len() as u32) + digits.parse::<u64>().ok()?)
    })?;
    u32::try_from(value).ok().filter(|value| !is_negative || *value == 0)
}

/// The numbers of the header.
struct Tokens<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Tokens<'_> {
    /// The next number; one byte after it is passed over too.
    fn number(&mut self) -> Result<u32, DecodeError> {
        let mut token = Vec::new();
        while token.len() <= MAX_TOKEN_BYTES {
            let Some(&byte) = self.bytes.get(self.at) else { break };
            self.at += 1;
            match byte {
                b'#' => {
                    let line = &self.bytes[self.at..];
                    self.at +=
                        line.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map_or(line.len(), |end| end + 1);
                }
                byte if is_space(byte) && token.is_empty() => {}
                byte if is_space(byte) => break,
                byte => token.push(byte),
            }
        }
        if token.is_empty() {
            return Err(DecodeError::Truncated(Format::Pnm));
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(broken("too many digits"));
        }
        number(&token).ok_or_else(|| broken("a header without numbers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let Some(Found { size, plan: AnyPlan::Pnm(plan), .. }) = probe(bytes)? else { return Ok(Vec::new()) };
        let mut rgb = vec![0xa5; size.rgb_bytes()];
        decode(bytes, &plan, size, &mut rgb)?;
        Ok(rgb)
    }

    #[test]
    fn numbers_are_those_of_python() {
        for (token, value) in [
            ("0", Some(0)),
            ("+5", Some(5)),
            ("-0", Some(0)),
            ("0012", Some(12)),
            ("1_0", Some(10)),
            ("1_00_2", Some(1002)),
            ("4294967295", Some(u32::MAX)),
            ("9999999999", None),
            ("-1", None),
            ("+-1", None),
            ("_1", None),
            ("1_", None),
            ("1__0", None),
            ("+", None),
            ("", None),
            ("1.0", None),
        ] {
            assert_eq!(number(token.as_bytes()), value, "{token}");
        }
    }

    #[test]
    fn text_beyond_the_picture_is_looked_at_to_the_end_of_its_block() {
        assert_eq!(decoded(b"P1\n2 1\n01 1 0\n#x\n").unwrap(), [255, 255, 255, 0, 0, 0]);
        assert!(decoded(b"P1\n2 1\n01 x").is_err());
        let spaces = |count: usize| b" ".repeat(count);
        // The block of 1 MiB begins behind the header.
        let bits = |count: usize| [&b"P1\n2 1\n01"[..], &spaces(count), b"x"].concat();
        assert!(decoded(&bits((1 << 20) - 3)).is_err());
        assert!(decoded(&bits((1 << 20) - 2)).is_ok());
        assert_eq!(decoded(b"P2\n1 1\n9\n7 x").unwrap(), [198; 3]);
        assert!(decoded(b"P2\n1 1\n9\n7 0123456789").is_ok());
        assert!(decoded(b"P2\n1 1\n9\n7 0123456789x").is_err());
        assert!(decoded(b"P2\n1 1\n9\n7 0123456789x ").is_ok());
        assert!(decoded(b"P2\n1 1\n9\n7").is_ok());
    }

    #[test]
    fn a_header_has_at_most_ten_digits_a_number() {
        assert!(decoded(b"P5 0000000001 1 255 a").is_ok());
        assert!(decoded(b"P5 00000000001 1 255 a").is_err());
    }
}

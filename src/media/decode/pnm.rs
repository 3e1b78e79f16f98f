//! PBM, PGM and PPM, plain and binary.
//!
//! Greys of more than 8 bits are scaled to 16 and then cut off above 255, as in the reference: most become white. The
//! other formats under the letter P that the reference reads (`Pf`, `P0CMYK`, `Py...`) are not decoded here.

use super::orientation::Orientation;
use super::raw::{Layout, Order, Rows};
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Size};

const SCRATCH_BYTES: usize = 16 << 10;
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
    let magic = bytes.split(|&byte| is_space(byte)).next().unwrap_or_default();
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
        Plan::Digits { at, kind: Kind::Bits, .. } => {
            let digits = uncommented(&bytes[at..]).filter(|byte| !is_space(*byte));
            fill(
                out,
                Kind::Bits,
                digits.map(|digit| match digit {
                    b'0' => Ok(255),
                    b'1' => Ok(0),
                    _ => Err(broken("a digit that is no bit")),
                }),
            )
        }
        Plan::Digits { at, kind, most } => {
            let mut bytes = uncommented(&bytes[at..]).peekable();
            let values = std::iter::from_fn(|| {
                while bytes.next_if(|byte| is_space(*byte)).is_some() {}
                let mut token = Vec::new();
                while let Some(byte) = bytes.next_if(|byte| !is_space(*byte)) {
                    token.push(byte);
                    if token.len() > MAX_TOKEN_BYTES {
                        return Some(Err(broken("too many digits")));
                    }
                }
                if token.is_empty() {
                    return None;
                }
                Some(
                    number(&token)
                        .filter(|value| *value <= most)
                        .map(|value| kind.byte(value, most))
                        .ok_or_else(|| broken("a value out of range")),
                )
            });
            fill(out, kind, values)
        }
    }
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

/// Bytes without comments, each of which goes from a hash to the end of its line, that end included.
fn uncommented(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let mut in_comment = false;
    bytes.iter().copied().filter(move |&byte| {
        let was_in_comment = in_comment;
        in_comment = if in_comment { !matches!(byte, b'\n' | b'\r') } else { byte == b'#' };
        !was_in_comment && !in_comment
    })
}

fn number(token: &[u8]) -> Option<u32> {
    let digits = token.strip_prefix(b"+").unwrap_or(token);
    std::str::from_utf8(digits).ok()?.parse().ok()
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
        number(&token).ok_or_else(|| broken("a header without numbers"))
    }
}

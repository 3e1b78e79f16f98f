//! The strings of LZW, for GIF and TIFF, which differ in how codes are stored and in what they forgive.
//!
//! Each new string is the last one and the byte that was written after it: bytes that lie side by side in the output. So
//! the table holds the place of a long string there, and a code of one is a copy within the output. Short strings, which
//! most are where LZW compresses badly, are in the table themselves.

/// Codes have at most twelve bits.
const TABLE: usize = 1 << 12;

/// A code without a string.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undefined;

/// A string of up to seven bytes: its length, then the bytes from the first on. Or a zero, where in the output a longer one
/// begins (32 bits), and its length (24 bits). All zeros is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    const NONE: Self = Self(0);
    const MOST_BYTES: u64 = 7;

    fn byte(byte: u8) -> Self {
        Self(u64::from(byte) << 8 | 1)
    }

    fn long(start: usize, length: usize) -> Self {
        Self((start as u64) << 8 | (length as u64) << 40)
    }

    /// Length of a short string, 0 of a long one.
    fn short_length(self) -> u64 {
        self.0 & 0xff
    }

    fn bytes(self) -> [u8; 8] {
        (self.0 >> 8).to_le_bytes()
    }

    fn start(self) -> usize {
        (self.0 >> 8 & 0xffff_ffff) as usize
    }

    fn length(self) -> usize {
        match self.short_length() {
            0 => (self.0 >> 40) as usize,
            length => length as usize,
        }
    }

    /// This string, which was written at `start`, and one more byte.
    fn and(self, byte: u8, start: usize) -> Self {
        match self.short_length() {
            length @ 1..Self::MOST_BYTES => Self((self.0 + 1) | (u64::from(byte) << (8 * (length + 1)))),
            _ => Self::long(start, self.length() + 1),
        }
    }
}

/// Strings by their codes. It takes longer to make than to use for a few bytes, and serves again for the next data.
pub(super) struct Table {
    entries: Box<[Entry; TABLE]>,
    first: usize,
}

impl Table {
    /// Codes below `literals` are bytes, those from `first` on are defined as they come.
    pub(super) fn new(literals: usize, first: usize) -> Self {
        let mut entries = Box::new([Entry::NONE; TABLE]);
        entries.iter_mut().take(literals).enumerate().for_each(|(code, entry)| *entry = Entry::byte(code as u8));
        Self { entries, first }
    }
}

/// The strings known so far, and what was written of them.
pub(super) struct Strings<'a> {
    out: &'a mut [u8],
    at: usize,
    first: usize,
    /// The code of the string that is the last one and the next byte.
    next: usize,
    /// The last string, and where it was written; none where the table was cleared.
    last: Entry,
    last_start: usize,
    /// From `next` on, strings of other data, which nobody looks at.
    table: &'a mut [Entry; TABLE],
}

impl<'a> Strings<'a> {
    /// No strings yet but bytes. `None` for an output of more than 4 GiB.
    pub(super) fn new(out: &'a mut [u8], table: &'a mut Table) -> Option<Self> {
        u32::try_from(out.len()).ok()?;
        let Table { entries, first } = table;
        Some(Self { out, at: 0, first: *first, next: *first, last: Entry::NONE, last_start: 0, table: entries })
    }

    /// Whether the output is full.
    pub(super) fn is_full(&self) -> bool {
        self.at == self.out.len()
    }

    /// Forgets all strings.
    pub(super) fn clear(&mut self) {
        self.next = self.first;
        self.last = Entry::NONE;
    }

    /// The code that the next new string gets.
    pub(super) fn next(&self) -> usize {
        self.next
    }

    /// Writes the string of `code`, or what of it the output has room for. Whether it made a new string.
    // A code takes a few nanoseconds: out of line, keeping the state in memory would take as long again.
    #[inline(always)]
    pub(super) fn write(&mut self, code: usize) -> Result<bool, Undefined> {
        let (at, last, last_start) = (self.at, self.last, self.last_start);
        let entry = if code < self.next {
            *self.table.get(code).ok_or(Undefined)?
        } else if code == self.next && last != Entry::NONE {
            // The last string and the byte after it, which is its own first.
            last.and(self.byte(last_start), last_start)
        } else {
            Entry::NONE
        };
        if entry == Entry::NONE {
            return Err(Undefined);
        }
        let (length, first_byte) = match entry.short_length() {
            0 => (self.copy(entry), self.byte(at)),
            length => {
                match self.out[at..].first_chunk_mut() {
                    // What is too much is overwritten later.
                    Some(target) => *target = entry.bytes(),
                    None => self.out[at..].iter_mut().zip(entry.bytes()).for_each(|(out, byte)| *out = byte),
                }
                (length as usize, entry.bytes()[0])
            }
        };
        let defined = last != Entry::NONE && self.next < TABLE;
        if defined {
            self.table[self.next] = last.and(first_byte, last_start);
            self.next += 1;
        }
        self.last = entry;
        self.last_start = at;
        self.at = self.out.len().min(at + length);
        Ok(defined)
    }

    /// A byte that was written; of what there was no room for, a zero, which goes nowhere.
    fn byte(&self, at: usize) -> u8 {
        self.out.get(at).copied().unwrap_or_default()
    }

    /// Appends a long string as far as there is room; its length.
    fn copy(&mut self, entry: Entry) -> usize {
        let (at, start, length) = (self.at, entry.start(), entry.length());
        let fitting = length.min(self.out.len() - at);
        // Of the string in the making, the last byte is yet to be written: it is its first.
        let written = fitting.min(at - start);
        self.out.copy_within(start..start + written, at);
        if written < fitting {
            self.out[at + written] = self.out[at];
        }
        length
    }
}

/// Codes that are packed from the highest bit of each byte on, as TIFF does.
pub(super) struct HighBits<'a> {
    bytes: &'a [u8],
    /// From the highest on.
    bits: u64,
    count: u32,
}

impl<'a> HighBits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, bits: 0, count: 0 }
    }

    /// The next code of `width` bits, at least one; `None` where the data ends before.
    pub(super) fn code(&mut self, width: u32) -> Option<usize> {
        if self.count < width {
            self.refill();
            if self.count < width {
                return None;
            }
        }
        let code = self.bits >> (u64::BITS - width);
        self.bits <<= width;
        self.count -= width;
        Some(code as usize)
    }

    fn refill(&mut self) {
        if let Some(word) = self.bytes.first_chunk() {
            // What is beyond the whole bytes is taken in again the next time, the same bits in the same places.
            self.bits |= u64::from_be_bytes(*word) >> self.count;
            let taken = (u64::BITS - 1 - self.count) / 8;
            self.bytes = &self.bytes[taken as usize..];
            self.count += taken * 8;
            return;
        }
        while let Some((&byte, rest)) = self.bytes.split_first().filter(|_| self.count <= u64::BITS - 8) {
            self.bits |= u64::from(byte) << (u64::BITS - 8 - self.count);
            self.count += 8;
            self.bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The strings as everybody writes them down: each one whole.
    fn model(codes: &[usize], literals: usize, first: usize, length: usize) -> Option<Vec<u8>> {
        let mut table: Vec<Vec<u8>> = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        let mut out = Vec::new();
        for &code in codes {
            let string = match (&last, code) {
                (_, literal) if literal < literals => vec![literal as u8],
                (Some(last), code) if code == first + table.len() => [&last[..], &last[..1]].concat(),
                (Some(_), code) => table.get(code.checked_sub(first)?)?.clone(),
                (None, _) => return None,
            };
            out.extend(&string);
            if let Some(last) = last.filter(|_| first + table.len() < TABLE) {
                table.push([&last[..], &string[..1]].concat());
            }
            last = Some(string);
        }
        out.resize(length.min(out.len()), 0);
        Some(out)
    }

    proptest::proptest! {
        #[test]
        fn strings_are_what_a_table_of_them_says(
            choices in proptest::collection::vec(0usize..1 << 12, 1..6000),
            literals in 1usize..20,
            length in 0usize..40_000,
        ) {
            let first = literals + 2;
            // Mostly codes that are there; the one in the making often.
            let codes: Vec<_> = choices.iter().enumerate().map(|(at, &choice)| match choice % 8 {
                0 => choice % literals,
                _ if at == 0 => choice % literals,
                1 => (first + at - 1).min(TABLE - 1),
                _ => (first + choice % at).min(TABLE - 1),
            }).collect();
            let expected = model(&codes, literals, first, length);
            let mut out = vec![0xa5; length];
            // Strings of other data may be left in it.
            let mut table = Table::new(literals, first);
            table.entries[first..].fill(Entry::byte(7));
            let mut strings = Strings::new(&mut out, &mut table).unwrap();
            let written = codes.iter().try_for_each(|&code| strings.write(code).map(drop));
            let at = strings.at;
            proptest::prop_assert_eq!(written.is_ok(), expected.is_some());
            if let Some(expected) = expected {
                proptest::prop_assert!(out[..at] == expected[..]);
            }
        }
    }

    #[test]
    fn a_code_is_undefined_until_the_string_before_it_is_there() {
        let (mut out, mut table) = ([0; 8], Table::new(4, 6));
        let mut strings = Strings::new(&mut out, &mut table).unwrap();
        assert_eq!(strings.write(6), Err(Undefined));
        assert_eq!(strings.write(1), Ok(false));
        assert_eq!(strings.write(7), Err(Undefined));
        assert_eq!(strings.write(6), Ok(true));
        assert_eq!(strings.write(6), Ok(true));
        strings.clear();
        assert_eq!(strings.write(6), Err(Undefined));
        assert_eq!(out[..5], [1; 5]);
    }

    #[test]
    fn high_bits_come_first() {
        let bytes: Vec<u8> = (0..40).map(|at: u8| at.wrapping_mul(37) ^ 0x5a).collect();
        for width in 1..=12 {
            let mut codes = HighBits::new(&bytes);
            let bit = |at: usize| usize::from(bytes[at / 8] >> (7 - at % 8) & 1);
            for start in (0..=bytes.len() * 8 - width).step_by(width) {
                let expected = (start..start + width).fold(0, |code, at| code << 1 | bit(at));
                assert_eq!(codes.code(width as u32), Some(expected));
            }
            assert_eq!(codes.code(width as u32), None);
        }
    }
}

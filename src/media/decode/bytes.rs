//! Reading integers out of headers: every access is checked, and the end of the data is a `None`.

/// Byte order of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endian {
    Big,
    Little,
}

impl Endian {
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let array = array(bytes, at)?;
        Some(match self {
            Self::Big => u16::from_be_bytes(array),
            Self::Little => u16::from_le_bytes(array),
        })
    }

    pub(super) fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let array = array(bytes, at)?;
        Some(match self {
            Self::Big => u32::from_be_bytes(array),
            Self::Little => u32::from_le_bytes(array),
        })
    }
}

/// `N` bytes from `at` on.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

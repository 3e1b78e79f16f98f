//! The C shim around libjpeg (native/jpeg_shim.h) as a safe type.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::Plan;
use crate::media::decode::Size;

// Links libjpeg-turbo, which the shim calls; nothing of the crate's own bindings is used.
use turbojpeg_sys as _;

const OK: c_int = 0;
const TRUNCATED: c_int = 1;
const TOO_MANY_SCANS: c_int = 3;
const ARITHMETIC: c_int = 4;
const UNEXPECTED: c_int = 5;

#[repr(C)]
struct RawDecoder {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn mg_jpeg_new(data: *const u8, size: usize, max_scans: c_int) -> *mut RawDecoder;
    fn mg_jpeg_free(jpeg: *mut RawDecoder);
    fn mg_jpeg_start(
        jpeg: *mut RawDecoder,
        width: u32,
        height: u32,
        components: c_int,
        denominator: u32,
        pixel_bytes: c_int,
    ) -> c_int;
    fn mg_jpeg_read(jpeg: *mut RawDecoder, out: *mut u8, row_bytes: usize, rows: u32) -> c_int;
    fn mg_jpeg_finish(jpeg: *mut RawDecoder) -> c_int;
    fn mg_jpeg_message(jpeg: *mut RawDecoder) -> *const c_char;
}

/// Why libjpeg stopped.
#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    Truncated,
    TooManyScans,
    Broken(String),
}

/// One decompression of one JPEG. After an error it is of no further use; its memory goes when it is dropped.
pub(super) struct Decoder<'data> {
    raw: NonNull<RawDecoder>,
    row_bytes: usize,
    rows_left: u32,
    data: PhantomData<&'data [u8]>,
}

impl<'data> Decoder<'data> {
    /// Reads the header, and all of a multi-scan file; fails unless the picture has the plan's size and components. Its rows
    /// come at one `denominator`th of that size, rounded up, `row_bytes` apart. Its pixels have a byte for each component, or
    /// four where three would do.
    pub(super) fn start(data: &'data [u8], plan: &Plan, pixel_bytes: u8, row_bytes: usize) -> Result<Self, Failure> {
        let Plan { components, max_scans, full: Size { height, width }, denominator } = *plan;
        assert!(width.div_ceil(denominator) as usize * usize::from(pixel_bytes) <= row_bytes, "rows apart");
        let max_scans = c_int::try_from(max_scans).unwrap_or(c_int::MAX);
        // SAFETY: data and size are those of a slice that outlives the decoder, by its lifetime.
        let raw = unsafe { mg_jpeg_new(data.as_ptr(), data.len(), max_scans) };
        let raw = NonNull::new(raw).ok_or_else(|| Failure::Broken("no memory for a decoder".into()))?;
        let decoder = Self { raw, row_bytes, rows_left: height.div_ceil(denominator), data: PhantomData };
        // SAFETY: raw is a live decoder that nobody else uses.
        let status =
            unsafe { mg_jpeg_start(raw.as_ptr(), width, height, components.into(), denominator, pixel_bytes.into()) };
        decoder.check(status)?;
        Ok(decoder)
    }

    /// Fills `rows`, a whole number of rows: of grey, of RGB, or of CMYK as it is stored, by the number of components. What is
    /// between them keeps what it had.
    pub(super) fn read(&mut self, rows: &mut [u8]) -> Result<(), Failure> {
        assert!(rows.len().is_multiple_of(self.row_bytes), "whole rows");
        let count = (rows.len() / self.row_bytes) as u32;
        assert!(count <= self.rows_left, "no more rows than the picture has");
        // SAFETY: rows has room for count rows of row_bytes, which are no shorter than what the shim checked libjpeg's output to be.
        let status = unsafe { mg_jpeg_read(self.raw.as_ptr(), rows.as_mut_ptr(), self.row_bytes, count) };
        self.rows_left -= count;
        self.check(status)
    }

    /// Reads what follows the last row; libjpeg may still find fault with it.
    pub(super) fn finish(self) -> Result<(), Failure> {
        // SAFETY: raw is a live decoder that nobody else uses.
        let status = unsafe { mg_jpeg_finish(self.raw.as_ptr()) };
        self.check(status)
    }

    fn check(&self, status: c_int) -> Result<(), Failure> {
        match status {
            OK => Ok(()),
            TRUNCATED => Err(Failure::Truncated),
            TOO_MANY_SCANS => Err(Failure::TooManyScans),
            ARITHMETIC => Err(Failure::Broken("arithmetic coding".into())),
            UNEXPECTED => Err(Failure::Broken("two frame headers that disagree".into())),
            _ => {
                // SAFETY: the shim returns a NUL-terminated string that lives as long as the decoder.
                let message = unsafe { CStr::from_ptr(mg_jpeg_message(self.raw.as_ptr())) };
                Err(Failure::Broken(message.to_string_lossy().into_owned()))
            }
        }
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        // SAFETY: raw came from mg_jpeg_new and is freed once.
        unsafe { mg_jpeg_free(self.raw.as_ptr()) }
    }
}

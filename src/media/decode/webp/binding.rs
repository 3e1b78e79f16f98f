//! libwebp's demultiplexer and decoder as safe types.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{self, NonNull};

use libwebp_sys::{
    VP8StatusCode, WEBP_CSP_MODE, WEBP_DEMUX_ABI_VERSION, WebPBitstreamFeatures, WebPData, WebPDecode,
    WebPDecoderConfig, WebPDemuxDelete, WebPDemuxGetChunk, WebPDemuxGetFrame, WebPDemuxGetI, WebPDemuxInternal,
    WebPDemuxReleaseChunkIterator, WebPDemuxReleaseIterator, WebPDemuxState, WebPDemuxer, WebPFormatFeature,
    WebPGetFeatures, WebPInitDecoderConfig, WebPRGBABuffer,
};

/// Why there is nothing to decode.
#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    Truncated,
    Broken(&'static str),
}

/// The first frame of a file, and where it lies on the canvas.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstFrame<'data> {
    /// Image chunks of the frame alone.
    pub(super) payload: &'data [u8],
    pub(super) top: u32,
    pub(super) left: u32,
    pub(super) height: u32,
    pub(super) width: u32,
}

/// The chunks of a whole file.
pub(super) struct Demuxer<'data> {
    raw: NonNull<WebPDemuxer>,
    data: PhantomData<&'data [u8]>,
}

impl<'data> Demuxer<'data> {
    /// Parses all chunks; incomplete files are refused, as in the reference.
    pub(super) fn new(bytes: &'data [u8]) -> Result<Self, Failure> {
        let data = WebPData { bytes: bytes.as_ptr(), size: bytes.len() };
        let mut state = WebPDemuxState::WEBP_DEMUX_PARSE_ERROR;
        // SAFETY: data describes a slice that outlives the demultiplexer, by its lifetime; state is written to.
        let raw = unsafe { WebPDemuxInternal(&data, 0, &mut state, WEBP_DEMUX_ABI_VERSION as i32) };
        match (NonNull::new(raw), state) {
            (Some(raw), _) => Ok(Self { raw, data: PhantomData }),
            (None, WebPDemuxState::WEBP_DEMUX_PARSING_HEADER | WebPDemuxState::WEBP_DEMUX_PARSED_HEADER) => {
                Err(Failure::Truncated)
            }
            (None, _) => Err(Failure::Broken("malformed chunks")),
        }
    }

    /// Height and width of the canvas.
    pub(super) fn canvas(&self) -> (u32, u32) {
        // SAFETY: raw is a live demultiplexer.
        let get = |feature| unsafe { WebPDemuxGetI(self.raw.as_ptr(), feature) };
        (get(WebPFormatFeature::WEBP_FF_CANVAS_HEIGHT), get(WebPFormatFeature::WEBP_FF_CANVAS_WIDTH))
    }

    /// The first frame, if it is complete.
    pub(super) fn first_frame(&self) -> Option<FirstFrame<'data>> {
        // SAFETY: an iterator of zeros is what the function expects, and releasing it afterwards is always allowed.
        let frame = unsafe {
            let mut frame = zeroed();
            let found = WebPDemuxGetFrame(self.raw.as_ptr(), 1, &mut frame);
            let copy = frame;
            WebPDemuxReleaseIterator(&mut frame);
            (found != 0 && copy.complete != 0).then_some(copy)?
        };
        Some(FirstFrame {
            payload: self.slice(frame.fragment),
            top: u32::try_from(frame.y_offset).ok()?,
            left: u32::try_from(frame.x_offset).ok()?,
            height: u32::try_from(frame.height).ok()?,
            width: u32::try_from(frame.width).ok()?,
        })
    }

    /// The content of the first chunk of this name.
    pub(super) fn chunk(&self, name: &CStr) -> Option<&'data [u8]> {
        // SAFETY: an iterator of zeros is what the function expects, and releasing it afterwards is always allowed.
        let (found, chunk) = unsafe {
            let mut iterator = zeroed();
            let found = WebPDemuxGetChunk(self.raw.as_ptr(), name.as_ptr(), 1, &mut iterator);
            let chunk = iterator.chunk;
            WebPDemuxReleaseChunkIterator(&mut iterator);
            (found, chunk)
        };
        (found != 0).then(|| self.slice(chunk))
    }

    fn slice(&self, data: WebPData) -> &'data [u8] {
        if data.bytes.is_null() {
            return &[];
        }
        // SAFETY: the demultiplexer hands out ranges of the data that it was made of, which lives for 'data.
        unsafe { std::slice::from_raw_parts(data.bytes, data.size) }
    }
}

impl Drop for Demuxer<'_> {
    fn drop(&mut self) {
        // SAFETY: raw came from WebPDemuxInternal and is deleted once.
        unsafe { WebPDemuxDelete(self.raw.as_ptr()) }
    }
}

/// Whether the file says that it has transparency. `None` where its header cannot be read.
pub(super) fn has_alpha(bytes: &[u8]) -> Option<bool> {
    let mut features = MaybeUninit::<WebPBitstreamFeatures>::zeroed();
    // SAFETY: pointer and length are those of a slice; features is plain data that the function fills.
    let features = unsafe {
        let status = WebPGetFeatures(bytes.as_ptr(), bytes.len(), features.as_mut_ptr());
        (status == VP8StatusCode::VP8_STATUS_OK).then(|| features.assume_init())?
    };
    Some(features.has_alpha != 0)
}

/// As what a frame is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pixels {
    Rgb,
    Rgba,
}

impl Pixels {
    fn bytes(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }
}

/// Decodes a frame's payload of this size into `out`, whose rows are `row_bytes` apart. Without an error, each row is written in
/// full.
pub(super) fn decode(frame: &FirstFrame<'_>, pixels: Pixels, out: &mut [u8], row_bytes: usize) -> Result<(), Failure> {
    let (height, width_bytes) = (frame.height as usize, frame.width as usize * pixels.bytes());
    assert!(height > 0 && width_bytes <= row_bytes, "rows apart");
    assert!(out.len() >= (height - 1) * row_bytes + width_bytes, "room for all rows");
    let mut config = MaybeUninit::<WebPDecoderConfig>::zeroed();
    // SAFETY: WebPInitDecoderConfig fills the config unless the versions of header and library differ, which it reports.
    let mut config = unsafe {
        if !WebPInitDecoderConfig(config.as_mut_ptr()) {
            return Err(Failure::Broken("another libwebp than at build time"));
        }
        config.assume_init()
    };
    config.output.colorspace = match pixels {
        Pixels::Rgb => WEBP_CSP_MODE::MODE_RGB,
        Pixels::Rgba => WEBP_CSP_MODE::MODE_RGBA,
    };
    config.output.is_external_memory = 1;
    config.output.u.RGBA = WebPRGBABuffer {
        rgba: out.as_mut_ptr(),
        stride: i32::try_from(row_bytes).map_err(|_| Failure::Broken("rows of more than 2 GiB"))?,
        size: out.len(),
    };
    // SAFETY: pointer and length are those of a slice, and so are those of the output, against which libwebp checks the size in the
    // payload before it writes.
    let status = unsafe { WebPDecode(frame.payload.as_ptr(), frame.payload.len(), ptr::from_mut(&mut config)) };
    if config.input.width != frame.width as i32 || config.input.height != frame.height as i32 {
        return Err(Failure::Broken("a frame of another size than announced"));
    }
    match status {
        VP8StatusCode::VP8_STATUS_OK => Ok(()),
        VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA | VP8StatusCode::VP8_STATUS_SUSPENDED => Err(Failure::Truncated),
        VP8StatusCode::VP8_STATUS_OUT_OF_MEMORY => Err(Failure::Broken("no memory")),
        VP8StatusCode::VP8_STATUS_UNSUPPORTED_FEATURE => Err(Failure::Broken("an unsupported feature")),
        _ => Err(Failure::Broken("a broken bitstream")),
    }
}

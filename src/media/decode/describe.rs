//! What of a picture is changed on the way to RGB, in words: for people who ask why it looks as it does.

use super::{Header, Plan};

impl Header {
    /// How the stored picture has to be turned to be upright: EXIF's value, 1 to 8; 1 is upright.
    pub fn orientation(&self) -> u8 {
        self.orientation.value()
    }

    /// Height and width as stored, before the orientation is applied.
    pub fn stored_size(&self) -> (u32, u32) {
        (self.stored.height, self.stored.width)
    }

    /// What the colours are stored as, and what is done about them.
    pub fn conversion(&self) -> &'static str {
        let alpha = |has_alpha| if has_alpha { "RGB with transparency, laid on white" } else { "none: RGB" };
        match &self.plan {
            Plan::Jpeg(plan) => match plan.components {
                1 => "grey, repeated for each colour",
                3 => "three colours (YCbCr or RGB), as the file says",
                _ => "CMYK or YCCK, read as inverted",
            },
            Plan::Png(plan) => plan.conversion(),
            Plan::WebP(plan) => alpha(plan.has_alpha),
            Plan::Qoi(plan) => alpha(plan.has_alpha),
            Plan::Gif(_) => "a palette; its transparent colour is laid on white",
            Plan::Pnm(_) => "grey or RGB, scaled to 8 bits",
            Plan::Bmp(_) | Plan::Tga(_) | Plan::Ico(_) | Plan::Tiff(_) => {
                "whatever the file stores, as 8 bits a colour; transparency is laid on white"
            }
        }
    }
}

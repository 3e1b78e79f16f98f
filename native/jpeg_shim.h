/* A narrow door to libjpeg for src/media/decode/jpeg/binding.rs.
 *
 * libjpeg reports fatal errors by a callback that must not return. Here it returns with longjmp to the entry of the
 * shim function that was called, so that no jump ever crosses a Rust frame. The input is one buffer; where libjpeg
 * wants more than there is, it suspends, and the shim says MG_JPEG_TRUNCATED. */
#ifndef MEDIAGATE_JPEG_SHIM_H
#define MEDIAGATE_JPEG_SHIM_H

#include <stddef.h>
#include <stdint.h>

enum {
  MG_JPEG_OK = 0,
  /* The data ends before the picture does. */
  MG_JPEG_TRUNCATED = 1,
  /* libjpeg gave up; mg_jpeg_message says why. */
  MG_JPEG_BROKEN = 2,
  /* More scans than allowed. */
  MG_JPEG_TOO_MANY_SCANS = 3,
  /* Arithmetic coding, which the reference does not read. */
  MG_JPEG_ARITHMETIC = 4,
  /* Another size or number of components than the caller expects. */
  MG_JPEG_UNEXPECTED = 5
};

typedef struct mg_jpeg mg_jpeg;

/* A decoder over `size` bytes at `data`, which must outlive it. NULL without memory. */
mg_jpeg *mg_jpeg_new(const uint8_t *data, size_t size, int max_scans);

void mg_jpeg_free(mg_jpeg *jpeg);

/* Reads up to the first row. A picture of 1 component comes as grey, of 3 as RGB, of 4 as CMYK with the bytes as stored. It
 * comes at 1/denominator of its size, rounded up: 1, 2, 4 or 8. Its pixels have as many bytes as it has components, or, of RGB,
 * 4, the last of which means nothing. */
int mg_jpeg_start(mg_jpeg *jpeg, uint32_t width, uint32_t height, int components, uint32_t denominator, int pixel_bytes);

/* The next `rows` rows, `row_bytes` apart in `out`. */
int mg_jpeg_read(mg_jpeg *jpeg, uint8_t *out, size_t row_bytes, uint32_t rows);

/* What follows the last row. The end of the data is no error here. */
int mg_jpeg_finish(mg_jpeg *jpeg);

/* The last error, terminated by NUL; valid until the next call. */
const char *mg_jpeg_message(mg_jpeg *jpeg);

#endif

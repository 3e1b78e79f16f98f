#include "jpeg_shim.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <jerror.h>

#include "jpeg_refine.h"

/* Rows asked for in one call of libjpeg, which hands out at most a few at a time. */
#define ROWS_PER_CALL 16

struct mg_jpeg {
  struct jpeg_decompress_struct decoder;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf entry;
  mg_refiner refiner;
  int is_refiner_installed;
  int max_scans;
  int status;
  char message[JMSG_LENGTH_MAX];
};

static mg_jpeg *shim_of(j_common_ptr common) { return (mg_jpeg *)common->client_data; }

static void fail(j_common_ptr common, int status) {
  mg_jpeg *jpeg = shim_of(common);
  jpeg->status = status;
  longjmp(jpeg->entry, 1);
}

static void on_fatal(j_common_ptr common) {
  common->err->format_message(common, shim_of(common)->message);
  fail(common, MG_JPEG_BROKEN);
}

/* Warnings are corrupt data that libjpeg got over; the reference takes the picture, and so do we. */
static void on_warning(j_common_ptr common, int level) {
  (void)common;
  (void)level;
}

static void on_output(j_common_ptr common) { (void)common; }

mg_refiner *mg_refiner_of(j_decompress_ptr decoder) { return &shim_of((j_common_ptr)decoder)->refiner; }

/* Called for every few rows of a scan, for the first time when the first scan is about to be read. */
static void on_progress(j_common_ptr common) {
  j_decompress_ptr decoder = (j_decompress_ptr)common;
  mg_jpeg *jpeg = shim_of(common);
  if (decoder->input_scan_number > jpeg->max_scans) {
    fail(common, MG_JPEG_TOO_MANY_SCANS);
  }
  if (decoder->progressive_mode && !jpeg->is_refiner_installed) {
    jpeg->is_refiner_installed = 1;
    mg_refiner_install(&jpeg->refiner, decoder);
  }
}

static void source_nothing(j_decompress_ptr decoder) { (void)decoder; }

/* All there is was in the buffer from the start: suspend. */
static boolean source_more(j_decompress_ptr decoder) {
  (void)decoder;
  return FALSE;
}

static void source_skip(j_decompress_ptr decoder, long count) {
  struct jpeg_source_mgr *source = decoder->src;
  size_t skipped = count < 0 ? 0 : (size_t)count;
  if (skipped > source->bytes_in_buffer) {
    skipped = source->bytes_in_buffer;
  }
  source->next_input_byte += skipped;
  source->bytes_in_buffer -= skipped;
}

mg_jpeg *mg_jpeg_new(const uint8_t *data, size_t size, int max_scans) {
  mg_jpeg *jpeg = calloc(1, sizeof *jpeg);
  if (jpeg == NULL) {
    return NULL;
  }
  jpeg->max_scans = max_scans;
  jpeg->decoder.err = jpeg_std_error(&jpeg->errors);
  jpeg->errors.error_exit = on_fatal;
  jpeg->errors.emit_message = on_warning;
  jpeg->errors.output_message = on_output;
  jpeg->decoder.client_data = jpeg;
  if (setjmp(jpeg->entry)) {
    mg_jpeg_free(jpeg);
    return NULL;
  }
  jpeg_create_decompress(&jpeg->decoder);
  /* jpeg_create_decompress keeps err and client_data, and clears the rest. */
  jpeg->progress.progress_monitor = on_progress;
  jpeg->decoder.progress = &jpeg->progress;
  jpeg->source.init_source = source_nothing;
  jpeg->source.fill_input_buffer = source_more;
  jpeg->source.skip_input_data = source_skip;
  jpeg->source.resync_to_restart = jpeg_resync_to_restart;
  jpeg->source.term_source = source_nothing;
  jpeg->source.next_input_byte = data;
  jpeg->source.bytes_in_buffer = size;
  jpeg->decoder.src = &jpeg->source;
  return jpeg;
}

void mg_jpeg_free(mg_jpeg *jpeg) {
  if (jpeg != NULL) {
    jpeg_destroy_decompress(&jpeg->decoder);
    free(jpeg);
  }
}

static uint32_t reduced(uint32_t side, uint32_t denominator) { return side / denominator + (side % denominator != 0); }

int mg_jpeg_start(mg_jpeg *jpeg, uint32_t width, uint32_t height, int components, uint32_t denominator,
                  int pixel_bytes) {
  j_decompress_ptr decoder = &jpeg->decoder;
  int found;
  if (setjmp(jpeg->entry)) {
    return jpeg->status;
  }
  do {
    found = jpeg_read_header(decoder, FALSE);
  } while (found == JPEG_HEADER_TABLES_ONLY);
  if (found == JPEG_SUSPENDED) {
    return MG_JPEG_TRUNCATED;
  }
  if (decoder->arith_code) {
    return MG_JPEG_ARITHMETIC;
  }
  if (decoder->image_width != width || decoder->image_height != height || decoder->num_components != components) {
    return MG_JPEG_UNEXPECTED;
  }
  decoder->out_color_space = components == 4   ? JCS_CMYK
                             : components == 1 ? JCS_GRAYSCALE
                             : pixel_bytes == 4 ? JCS_EXT_RGBX
                                                : JCS_RGB;
  /* The defaults, which the reference uses, spelled out: they decide the pixels. */
  decoder->dct_method = JDCT_ISLOW;
  decoder->do_fancy_upsampling = TRUE;
  decoder->scale_num = 1;
  decoder->scale_denom = denominator;
  if (!jpeg_start_decompress(decoder)) {
    return MG_JPEG_TRUNCATED;
  }
  if (decoder->output_width != reduced(width, denominator) || decoder->output_height != reduced(height, denominator) ||
      decoder->output_components != pixel_bytes) {
    return MG_JPEG_UNEXPECTED;
  }
  return MG_JPEG_OK;
}

int mg_jpeg_read(mg_jpeg *jpeg, uint8_t *out, size_t row_bytes, uint32_t rows) {
  JSAMPROW pointers[ROWS_PER_CALL];
  uint32_t done = 0;
  if (setjmp(jpeg->entry)) {
    return jpeg->status;
  }
  while (done < rows) {
    uint32_t wanted = rows - done < ROWS_PER_CALL ? rows - done : ROWS_PER_CALL;
    uint32_t read, i;
    for (i = 0; i < wanted; i++) {
      pointers[i] = out + (size_t)(done + i) * row_bytes;
    }
    read = jpeg_read_scanlines(&jpeg->decoder, pointers, wanted);
    if (read == 0) {
      return MG_JPEG_TRUNCATED;
    }
    done += read;
  }
  return MG_JPEG_OK;
}

int mg_jpeg_finish(mg_jpeg *jpeg) {
  if (setjmp(jpeg->entry)) {
    return jpeg->status;
  }
  (void)jpeg_finish_decompress(&jpeg->decoder);
  return MG_JPEG_OK;
}

const char *mg_jpeg_message(mg_jpeg *jpeg) { return jpeg->message; }

/* Refinement scans of progressive JPEGs, faster than libjpeg reads them.
 *
 * More than half of the time for a progressive photograph goes into one function of libjpeg, which reads the next bit of
 * every coefficient that is not zero, one by one. Here they are read by the block. The coefficients are the same for every
 * file, broken ones included. */
#ifndef MEDIAGATE_JPEG_REFINE_H
#define MEDIAGATE_JPEG_REFINE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

enum { MG_LOOKAHEAD_BITS = 9 };

/* What is kept between the blocks of a scan. */
typedef struct {
  /* libjpeg's own, which checks the scan. */
  void (*start_pass)(j_decompress_ptr decoder);
  /* What was read and not used, from the highest bit on. The bits below are zeros, or those that will be read next. */
  uint64_t bits;
  int bit_count;
  /* Blocks to come that have no new coefficients. */
  uint32_t end_of_band_run;
  /* Of the codes that are short enough, by the bits that begin with them: length << 8 | symbol; otherwise 0. */
  uint16_t short_codes[1 << MG_LOOKAHEAD_BITS];
  /* Of each length: one more than its last code, and where its symbols are, less its first code. */
  uint32_t code_ends[17];
  int32_t symbols_at[17];
} mg_refiner;

/* Takes over the refinement scans that begin from now on, where the version of libjpeg is one that this was made for. To be
 * called once, when decompression was started; `decoder` keeps the refiner from then on. */
void mg_refiner_install(mg_refiner *refiner, j_decompress_ptr decoder);

/* The refiner that was installed, from the shim, which knows what else belongs to a decoder. */
mg_refiner *mg_refiner_of(j_decompress_ptr decoder);

#endif

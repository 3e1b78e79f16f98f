#include "jpeg_refine.h"

#include <string.h>

#if LIBJPEG_TURBO_VERSION_NUMBER / 1000 != 3001

/* Another version of libjpeg: how it looks inside is not known, and it does all by itself. */
void mg_refiner_install(mg_refiner *refiner, j_decompress_ptr decoder) {
  (void)refiner;
  (void)decoder;
}

#else

/* What jpeglib.h of libjpeg-turbo 3.1 leaves open: how the reading of a scan is done. */
struct jpeg_entropy_decoder {
  void (*start_pass)(j_decompress_ptr decoder);
  boolean (*decode_mcu)(j_decompress_ptr decoder, JBLOCKROW *blocks);
  /* Of lossless files. */
  void (*decode_mcus)(void);
  void (*process_restart)(void);
  /* A marker came where there should have been data: what is left of the scan stays as it is. */
  boolean insufficient_data;
};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define WITH_BIT_INSTRUCTIONS 1
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* Where the coefficients of a block are, in the order of the file. A run that ends beyond the last ends there. */
static const uint8_t place_of[DCTSIZE2 + 1] = {
  0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
  41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
  30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63
};

/* The inverse. */
static const uint8_t index_of[DCTSIZE2] = {
  0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30,
  41, 43, 9,  11, 18, 24, 31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38,
  46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63
};

/* The bits from `first` to `last`. */
INLINE uint64_t bits_between(int first, int last) { return (~(uint64_t)0 >> (63 - last)) & (~(uint64_t)0 << first); }

/* A bit for each place in a block where there is something. */
INLINE uint64_t places_filled(const JCOEF *block) {
  uint64_t filled = 0;
  int i;
#ifdef WITH_BIT_INSTRUCTIONS
  const __m128i zero = _mm_setzero_si128();
  for (i = 0; i < DCTSIZE2; i += 16) {
    __m128i low = _mm_loadu_si128((const __m128i *)(block + i));
    __m128i high = _mm_loadu_si128((const __m128i *)(block + i + 8));
    /* Saturation makes a zero of nothing else. */
    int empty = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_packs_epi16(low, high), zero));
    filled |= (uint64_t)(uint16_t)~empty << i;
  }
#else
  for (i = 0; i < DCTSIZE2; i++) {
    filled |= (uint64_t)(block[i] != 0) << i;
  }
#endif
  return filled;
}

/* The same in the order of the file. */
INLINE uint64_t in_file_order(uint64_t places) {
  uint64_t indices = 0;
  for (; places != 0; places &= places - 1) {
    indices |= (uint64_t)1 << index_of[__builtin_ctzll(places)];
  }
  return indices;
}

/* The reader of bits, in variables of its own while a block is read. */
typedef struct {
  uint64_t bits;
  int count;
  const uint8_t *next;
  size_t left;
} reader;

/* Reads a byte at a time, up to a marker. 0 where the file ends before one comes. */
static int read_bytes(reader *in, j_decompress_ptr decoder) {
  while (in->count <= 56 && decoder->unread_marker == 0) {
    uint8_t byte;
    if (in->left == 0) {
      return 0;
    }
    byte = *in->next++;
    in->left--;
    if (byte == 0xff) {
      /* Followed by a zero, it is one of the data. */
      do {
        if (in->left == 0) {
          return 0;
        }
        byte = *in->next++;
        in->left--;
      } while (byte == 0xff);
      if (byte != 0) {
        decoder->unread_marker = byte;
        break;
      }
      byte = 0xff;
    }
    in->bits |= (uint64_t)byte << (56 - in->count);
    in->count += 8;
  }
  return 1;
}

/* Sees to it that there are 32 bits, if the scan has so many. */
INLINE int look_ahead(reader *in, j_decompress_ptr decoder) {
  if (in->count >= 32) {
    return 1;
  }
  if (in->left >= 8 && decoder->unread_marker == 0) {
    uint64_t bytes;
    int whole = (63 - in->count) / 8;
    memcpy(&bytes, in->next, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    bytes = __builtin_bswap64(bytes);
#endif
    /* None of them is 0xff: none of the inverse is zero. */
    if (((~bytes - 0x0101010101010101) & bytes & 0x8080808080808080) == 0) {
      in->bits |= bytes >> in->count;
      in->next += whole;
      in->left -= (size_t)whole;
      in->count += whole * 8;
      return 1;
    }
  }
  return read_bytes(in, decoder);
}

/* Takes up to 32 bits, of which there are enough, or else zeros follow. */
INLINE uint32_t take(reader *in, j_decompress_ptr decoder, int count) {
  uint32_t taken = (uint32_t)(in->bits >> 1 >> (63 - count));
  if (count > in->count) {
    decoder->entropy->insufficient_data = TRUE;
    in->count = 63;
  }
  in->bits <<= count;
  in->count -= count;
  return taken;
}

/* The next symbol; 0 for bits that are no code. */
INLINE int take_symbol(reader *in, j_decompress_ptr decoder, const mg_refiner *refiner, const uint8_t *symbols) {
  int length = refiner->short_codes[in->bits >> (64 - MG_LOOKAHEAD_BITS)];
  int symbol = length & 0xff;
  length >>= 8;
  if (length == 0) {
    uint32_t code = 0;
    for (length = MG_LOOKAHEAD_BITS + 1; length <= 16; length++) {
      code = (uint32_t)(in->bits >> (64 - length));
      if (code < refiner->code_ends[length]) {
        break;
      }
    }
    symbol = length <= 16 ? symbols[((int32_t)code + refiner->symbols_at[length]) & 0xff] : 0;
  }
  (void)take(in, decoder, length);
  return symbol;
}

/* Appends to `corrections` the next bit of each of the coefficients in `which`. 0 where the file ends. */
INLINE int take_corrections(reader *in, j_decompress_ptr decoder, uint64_t which, uint64_t *corrections) {
  int count = __builtin_popcountll(which);
  while (count > 0) {
    int now = count < 32 ? count : 32;
    if (now > in->count && !look_ahead(in, decoder)) {
      return 0;
    }
    *corrections = *corrections << now | take(in, decoder, now);
    count -= now;
  }
  return 1;
}

/* One block: T.81, G.1.2.3. */
INLINE boolean refine_block(j_decompress_ptr decoder, JCOEF *block) {
  mg_refiner *refiner = mg_refiner_of(decoder);
  const int last = decoder->Se, shift = decoder->Al;
  const uint64_t band = bits_between(decoder->Ss, last);
  const uint64_t filled = in_file_order(places_filled(block)) & band;
  const uint8_t *symbols = decoder->ac_huff_tbl_ptrs[decoder->cur_comp_info[0]->ac_tbl_no]->huffval;
  uint32_t run = refiner->end_of_band_run;
  /* The indices that were not yet passed. */
  uint64_t ahead = band, corrections = 0, left;
  int beyond = 0;
  reader in;
  if (decoder->entropy->insufficient_data) {
    return TRUE;
  }
  in.bits = refiner->bits;
  in.count = refiner->bit_count;
  in.next = decoder->src->next_input_byte;
  in.left = decoder->src->bytes_in_buffer;

  while (run == 0 && ahead != 0) {
    int symbol, zeros, size, value = 0;
    uint64_t empty, from;
    if (!look_ahead(&in, decoder)) {
      return FALSE;
    }
    symbol = take_symbol(&in, decoder, refiner, symbols);
    zeros = symbol >> 4;
    size = symbol & 15;
    if (size != 0) {
      /* A size other than 1 is taken for it. */
      value = take(&in, decoder, 1) ? 1 << shift : -(1 << shift);
    } else if (zeros != 15) {
      run = ((uint32_t)1 << zeros) + take(&in, decoder, zeros);
      break;
    }
    /* On to the coefficient after so many that are zero. */
    for (empty = ahead & ~filled; zeros > 0; zeros--) {
      empty &= empty - 1;
    }
    from = ahead;
    /* Above the lowest bit of `empty`, or nothing. */
    ahead &= empty == 0 ? 0 : ~(empty ^ (empty - 1));
    if (!take_corrections(&in, decoder, filled & from & ~ahead, &corrections)) {
      return FALSE;
    }
    if (empty != 0) {
      if (value != 0) {
        block[place_of[__builtin_ctzll(empty)]] = (JCOEF)value;
      }
    } else {
      beyond = value;
    }
  }
  if (run > 0) {
    if (!take_corrections(&in, decoder, filled & ahead, &corrections)) {
      return FALSE;
    }
    run--;
  }

  if (corrections != 0) {
    corrections <<= 64 - __builtin_popcountll(filled);
    for (left = filled; left != 0; left &= left - 1) {
      JCOEF *coefficient = block + place_of[__builtin_ctzll(left)];
      int old = *coefficient, sign = old < 0 ? -1 : 0;
      int grows = (int)(corrections >> 63) & ~(old >> shift);
      *coefficient = (JCOEF)(old + (((grows & 1) << shift) ^ sign) - sign);
      corrections <<= 1;
    }
  }
  /* A run that went too far leaves its coefficient after the band, whatever was there. */
  if (beyond != 0) {
    block[place_of[last + 1]] = (JCOEF)beyond;
  }

  refiner->bits = in.bits;
  refiner->bit_count = in.count;
  refiner->end_of_band_run = run;
  decoder->src->next_input_byte = in.next;
  decoder->src->bytes_in_buffer = in.left;
  return TRUE;
}

static boolean refine_anywhere(j_decompress_ptr decoder, JBLOCKROW *blocks) {
  return refine_block(decoder, blocks[0][0]);
}

#ifdef WITH_BIT_INSTRUCTIONS
__attribute__((target("bmi,bmi2,popcnt"))) static boolean refine_with_bit_instructions(j_decompress_ptr decoder,
                                                                                         JBLOCKROW *blocks) {
  return refine_block(decoder, blocks[0][0]);
}
#endif

/* Codes are numbers that count up, and double where they become longer by a bit. libjpeg has checked that they fit. */
static void prepare_codes(mg_refiner *refiner, const JHUFF_TBL *table) {
  uint32_t code = 0;
  int length, symbol = 0;
  memset(refiner->short_codes, 0, sizeof refiner->short_codes);
  for (length = 1; length <= 16; length++) {
    int count = table->bits[length];
    refiner->symbols_at[length] = symbol - (int32_t)code;
    for (; count > 0; count--, code++, symbol++) {
      if (length <= MG_LOOKAHEAD_BITS) {
        int spare = MG_LOOKAHEAD_BITS - length, i;
        for (i = 0; i < 1 << spare; i++) {
          refiner->short_codes[(code << spare) + (uint32_t)i] = (uint16_t)(length << 8 | table->huffval[symbol]);
        }
      }
    }
    refiner->code_ends[length] = code;
    code <<= 1;
  }
}

static void start_pass(j_decompress_ptr decoder) {
  mg_refiner *refiner = mg_refiner_of(decoder);
  refiner->start_pass(decoder);
  /* Restart markers are rare, and left to libjpeg. */
  if (decoder->Ss == 0 || decoder->Ah == 0 || decoder->restart_interval != 0) {
    return;
  }
  refiner->bits = 0;
  refiner->bit_count = 0;
  refiner->end_of_band_run = 0;
  prepare_codes(refiner, decoder->ac_huff_tbl_ptrs[decoder->cur_comp_info[0]->ac_tbl_no]);
  decoder->entropy->decode_mcu = refine_anywhere;
#ifdef WITH_BIT_INSTRUCTIONS
  if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt")) {
    decoder->entropy->decode_mcu = refine_with_bit_instructions;
  }
#endif
}

void mg_refiner_install(mg_refiner *refiner, j_decompress_ptr decoder) {
  refiner->start_pass = decoder->entropy->start_pass;
  decoder->entropy->start_pass = start_pass;
}

#endif

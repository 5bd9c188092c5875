#include "check.h"

int failed_checks;

int check(int holds, const char* what, const char* file, int line) {
    if (!holds) {
        __atomic_fetch_add(&failed_checks, 1, __ATOMIC_RELAXED);
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    }
    return holds;
}

void check_status(GzStatus status, GzStatus expected, const char* text, const char* call,
                  const char* file, int line) {
    const char* said = status == GZ_OK ? "" : gz_last_error()->message;
    if (check(status == expected && strstr(said, text) != NULL, call, file, line)) return;
    fprintf(stderr, "    %s: \"%s\"; expected was %s: \"%s\"\n", gz_status_name(status), said,
            gz_status_name(expected), text);
}

int own_rank(void) {
    int rank = -1;
    OK(gz_rank(&rank));
    return rank;
}

int rank_count(void) {
    int size = -1;
    OK(gz_size(&size));
    return size;
}

GzTensor vector_of(void* data, GzDType dtype, const int64_t* extent) {
    GzTensor tensor = {data, extent, NULL, dtype, 1, {GZ_HOST, 0}};
    return tensor;
}

size_t bytes_of(GzDType dtype) {
    static const size_t bytes[] = {1, 1, 2, 4, 8, 1, 2, 2, 4, 8, 2, 4, 8};
    return bytes[dtype];
}

/// The bits of an f16 from those of the same value as an f32, and back; normal numbers and 0.
static uint16_t half_of(uint32_t bits) {
    if (bits == 0) return 0;
    return (uint16_t)((bits >> 31 << 15) | (((bits >> 23 & 255) - 112) << 10) |
                      (bits >> 13 & 1023));
}
static uint32_t single_of(uint16_t bits) {
    if (bits == 0) return 0;
    return ((uint32_t)(bits >> 15) << 31) | (((bits >> 10 & 31u) + 112) << 23) |
           ((bits & 1023u) << 13);
}

#define SET(Type)                       \
    ((Type*)data)[index] = (Type)value; \
    break
void set_element(void* data, GzDType dtype, size_t index, double value) {
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    switch (dtype) {
        case GZ_U8:
        case GZ_BOOLEAN: SET(uint8_t);
        case GZ_I8: SET(int8_t);
        case GZ_I16: SET(int16_t);
        case GZ_I32: SET(int32_t);
        case GZ_I64: SET(int64_t);
        case GZ_F16: ((uint16_t*)data)[index] = half_of(bits); break;
        case GZ_BF16: ((uint16_t*)data)[index] = (uint16_t)(bits >> 16); break;
        case GZ_F32: SET(float);
        case GZ_F64: SET(double);
        case GZ_U16: SET(uint16_t);
        case GZ_U32: SET(uint32_t);
        case GZ_U64: SET(uint64_t);
        default: check(0, "a dtype", __FILE__, __LINE__);
    }
}

#define GET(Type) return (double)((const Type*)data)[index]
double get_element(const void* data, GzDType dtype, size_t index) {
    uint32_t bits = 0;
    float single;
    switch (dtype) {
        case GZ_U8:
        case GZ_BOOLEAN: GET(uint8_t);
        case GZ_I8: GET(int8_t);
        case GZ_I16: GET(int16_t);
        case GZ_I32: GET(int32_t);
        case GZ_I64: GET(int64_t);
        case GZ_F16: bits = single_of(((const uint16_t*)data)[index]); break;
        case GZ_BF16: bits = (uint32_t)((const uint16_t*)data)[index] << 16; break;
        case GZ_F32: GET(float);
        case GZ_F64: GET(double);
        case GZ_U16: GET(uint16_t);
        case GZ_U32: GET(uint32_t);
        case GZ_U64: GET(uint64_t);
        default: check(0, "a dtype", __FILE__, __LINE__);
    }
    memcpy(&single, &bits, sizeof single);
    return single;
}

// Mathematics as CUDA names it, from the host's: right, but not to the bit what a card gives.
//
// What the host has not is in libraries/special.cpp.
#pragma once
#include "words.h"

#define PRETEND_STD(name) using std::name;
PRETEND_STD(abs)
PRETEND_STD(isnan)
PRETEND_STD(isinf)
PRETEND_STD(isfinite)
PRETEND_STD(signbit)
PRETEND_STD(sin)
PRETEND_STD(cos)
PRETEND_STD(tan)
PRETEND_STD(asin)
PRETEND_STD(acos)
PRETEND_STD(atan)
PRETEND_STD(atan2)
PRETEND_STD(sinh)
PRETEND_STD(cosh)
PRETEND_STD(tanh)
PRETEND_STD(asinh)
PRETEND_STD(acosh)
PRETEND_STD(atanh)
PRETEND_STD(exp)
PRETEND_STD(exp2)
PRETEND_STD(expm1)
PRETEND_STD(log)
PRETEND_STD(log2)
PRETEND_STD(log1p)
PRETEND_STD(log10)
PRETEND_STD(pow)
PRETEND_STD(sqrt)
PRETEND_STD(cbrt)
PRETEND_STD(hypot)
PRETEND_STD(erf)
PRETEND_STD(erfc)
PRETEND_STD(lgamma)
PRETEND_STD(tgamma)
PRETEND_STD(floor)
PRETEND_STD(ceil)
PRETEND_STD(trunc)
PRETEND_STD(rint)
PRETEND_STD(round)
PRETEND_STD(nearbyint)
PRETEND_STD(lrint)
PRETEND_STD(llrint)
PRETEND_STD(lround)
PRETEND_STD(llround)
PRETEND_STD(fabs)
PRETEND_STD(fmax)
PRETEND_STD(fmin)
PRETEND_STD(fdim)
PRETEND_STD(fma)
PRETEND_STD(fmod)
PRETEND_STD(modf)
PRETEND_STD(remainder)
PRETEND_STD(remquo)
PRETEND_STD(copysign)
PRETEND_STD(nextafter)
PRETEND_STD(frexp)
PRETEND_STD(ldexp)
PRETEND_STD(scalbn)
PRETEND_STD(ilogb)
PRETEND_STD(logb)

static inline float __fdividef(float a, float b) { return a / b; }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline float rsqrt(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline double sinpi(double x) { return sin(M_PI * x); }
static inline double cospi(double x) { return cos(M_PI * x); }
static inline float sinpif(float x) { return (float)sin(M_PI * x); }
static inline float cospif(float x) { return (float)cos(M_PI * x); }

extern "C" {
double pretend_erfinv(double);
double pretend_erfcinv(double);
double pretend_normcdfinv(double);
double pretend_erfcx(double);
double pretend_bessel(int order, double);
}
// Not static: CuPy's sources declare these by themselves.
inline double erfinv(double x) { return pretend_erfinv(x); }
inline float erfinv(float x) { return (float)pretend_erfinv(x); }
inline float erfinvf(float x) { return (float)pretend_erfinv(x); }
inline double erfcinv(double x) { return pretend_erfcinv(x); }
inline float erfcinv(float x) { return (float)pretend_erfcinv(x); }
inline float erfcinvf(float x) { return (float)pretend_erfcinv(x); }
inline double erfcx(double x) { return pretend_erfcx(x); }
inline float erfcxf(float x) { return (float)pretend_erfcx(x); }
inline double normcdfinv(double x) { return pretend_normcdfinv(x); }
inline float normcdfinvf(float x) { return (float)pretend_normcdfinv(x); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
static inline float normcdf(float x) { return (float)(0.5 * erfc(-x * M_SQRT1_2)); }
static inline float normcdff(float x) { return normcdf(x); }
static inline double cyl_bessel_i0(double x) { return pretend_bessel(0, x); }
static inline double cyl_bessel_i1(double x) { return pretend_bessel(1, x); }
static inline float cyl_bessel_i0f(float x) { return (float)pretend_bessel(0, x); }
static inline float cyl_bessel_i1f(float x) { return (float)pretend_bessel(1, x); }

#define PRETEND_MIN_MAX(T)                                                                                             \
    static inline T max(T a, T b) { return a < b ? b : a; }                                                            \
    static inline T min(T a, T b) { return b < a ? b : a; }
PRETEND_MIN_MAX(int)
PRETEND_MIN_MAX(unsigned)
PRETEND_MIN_MAX(long)
PRETEND_MIN_MAX(unsigned long)
PRETEND_MIN_MAX(long long)
PRETEND_MIN_MAX(unsigned long long)
static inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
static inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
static inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
static inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }

// A card takes −0 for less than 0; and, as the host does, a number before NaN.
#define PRETEND_MIN_MAX_OF_REALS(T)                                                                                    \
    static inline T max(T a, T b) { return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b); }                     \
    static inline T min(T a, T b) { return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b); }
PRETEND_MIN_MAX_OF_REALS(float)
PRETEND_MIN_MAX_OF_REALS(double)

// How the libraries of the pretend device put work on its streams, and what they share of halves and bfloat16.
#pragma once
#include <cstring>
#include <functional>

#define PRETEND_API extern "C" __attribute__((visibility("default")))

extern "C" int pretend_enqueue(void *stream, void (*call)(void *), void *told, void (*forget)(void *));
extern "C" int pretend_enqueue_until(void *stream, int (*attempt)(void *), void *told, void (*forget)(void *));
extern "C" unsigned long long pretend_told(void *stream);
extern "C" void pretend_advance(void *stream, unsigned long long upto);
extern "C" int pretend_device_of(void *stream);
extern "C" int pretend_capturing(void *stream);

namespace pretend
{
using Work = std::function<void()>;

// Whether the stream refused it.
inline bool refused(void *stream, Work work)
{
    auto call = [](void *told) { (*(Work *)told)(); };
    auto forget = [](void *told) { delete (Work *)told; };
    return pretend_enqueue(stream, call, new Work(work), forget) != 0;
}

struct Half {
    unsigned short bits;

    Half() = default;

    explicit Half(float value)
    {
        _Float16 rounded = value;
        memcpy(&bits, &rounded, sizeof bits);
    }

    operator float() const
    {
        _Float16 value;
        memcpy(&value, &bits, sizeof bits);
        return value;
    }
};

struct Bfloat16 {
    unsigned short bits;

    Bfloat16() = default;

    explicit Bfloat16(float value)
    {
        unsigned wide;
        memcpy(&wide, &value, sizeof wide);
        unsigned to_even = 0x7fff + ((wide >> 16) & 1);
        bits = value != value ? 0x7fff : (unsigned short)((wide + to_even) >> 16);
    }

    operator float() const
    {
        unsigned wide = (unsigned)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
};
} // namespace pretend

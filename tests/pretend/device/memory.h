// Which memory is whose: for copies, which look whether they stay within it.
#pragma once
#include <cstddef>

namespace pretend
{
struct Block {
    char *begin;
    size_t size, mapped;
    int file; // the memory file behind it, by which other processes map it; −1 for none
    int device;
    bool of_host; // pinned
    bool opened;  // another process's
};

// The block that an address lies in, or nothing.
Block *block_of(const void *address);
} // namespace pretend

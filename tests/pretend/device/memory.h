// Which memory is whose: for copies, which look whether they stay within it.
#pragma once
#include <cstddef>
#include <memory>

namespace pretend
{
struct Block {
    char *begin;
    size_t size, mapped;
    int file; // the memory file behind it, by which other processes map it; −1 for none
    int device;
    bool of_host;    // pinned
    bool opened;     // another process's
    bool registered; // of somebody else, who has it pinned
    std::shared_ptr<int> copies = std::make_shared<int>(0); // how many that are still to be done read or write it
};

// The block that an address lies in, or nothing.
Block *block_of(const void *address);
} // namespace pretend

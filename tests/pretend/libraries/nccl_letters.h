// What passes between the ranks of a communicator of the pretend NCCL: letters, which are files in a folder of its own.
#pragma once
#include "on_stream.h"
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace pretend
{
namespace nccl
{
namespace fs = std::filesystem;

enum Status { SUCCESS, UNHANDLED_CUDA_ERROR, INVALID_ARGUMENT = 4, INVALID_USAGE };
enum Type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
constexpr size_t WIDTHS[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr char SPOILT = (char)0xab;

// A file that is there with all that is in it, or not at all.
inline void appear(const fs::path &path, const std::string &content)
{
    fs::path unfinished = path.string() + "~";
    std::ofstream(unfinished, std::ios::binary) << content;
    std::error_code ignored; // of a folder that all others have left
    fs::rename(unfinished, path, ignored);
}

struct Communicator {
    fs::path folder;
    int size, rank, device;
    std::atomic<bool> ended{false};
    std::atomic<int> error{SUCCESS};
    long long collectives = 0;
    std::map<int, long long> sent, received; // by peer

    // The last to leave takes the folder away.
    ~Communicator()
    {
        std::ofstream(folder / (std::to_string(rank) + ".left"));
        for (int i = 0; i < size; ++i)
            if (!fs::exists(folder / (std::to_string(i) + ".left")))
                return;
        std::error_code ignored;
        fs::remove_all(folder, ignored);
    }
};

// What all who make a call together say alike.
struct Facts {
    int kind, type, operation, root;
    size_t count;

    bool operator==(const Facts &other) const { return !memcmp(this, &other, sizeof *this); }
    size_t bytes() const { return type >= 0 && type < TYPES ? count * WIDTHS[type] : 0; }
};

// One each way between this rank and another: data, or nothing but the facts.
struct Letter {
    int peer;
    fs::path sent_as, comes_as;
    const char *from;
    size_t bytes;
    std::vector<char> data; // what came
    bool come = false;

    void post(const Facts &facts) const
    {
        std::string said((const char *)&facts, sizeof facts);
        appear(sent_as, said.append(from, bytes));
    }

    // Whether it is there; and whether it is of the same call.
    bool take(const Facts &facts, bool &alike)
    {
        if (come)
            return true;
        std::ifstream file(comes_as, std::ios::binary);
        if (!file)
            return false;
        Facts theirs{};
        file.read((char *)&theirs, sizeof theirs);
        data.assign(std::istreambuf_iterator<char>(file), {});
        file.close();
        std::error_code ignored;
        fs::remove(comes_as, ignored);
        alike = alike && theirs == facts;
        return come = true;
    }
};

struct Call {
    Facts facts;
    char *to;
    size_t written;
    std::vector<Letter> letters;
    std::function<void(const Call &)> end;
};

// What is between groupStart and groupEnd for one stream, or one call.
struct Operation {
    std::shared_ptr<Communicator> communicator;
    void *stream;
    std::vector<Call> calls;
    unsigned long long told = 0;
    bool posted = false, alike = true;
    std::atomic<bool> done{false};

    bool wanted() const
    {
        for (const Call &call : calls)
            for (const Letter &letter : call.letters)
                if (fs::exists(letter.comes_as))
                    return true;
        return false;
    }

    void post()
    {
        posted = true;
        for (Call &call : calls)
            for (Letter &letter : call.letters) {
                letter.come = letter.peer == communicator->rank;
                if (letter.come)
                    letter.data.assign(letter.from, letter.from + letter.bytes);
                else
                    letter.post(call.facts);
            }
    }

    void spoil()
    {
        for (Call &call : calls)
            memset(call.to, SPOILT, call.written);
    }

    bool attempt()
    {
        if (communicator->ended) {
            spoil();
            return done = true;
        }
        if (!posted)
            post();
        for (Call &call : calls)
            for (Letter &letter : call.letters)
                if (!letter.take(call.facts, alike))
                    return false;
        if (alike) {
            for (Call &call : calls)
                call.end(call);
        } else {
            fprintf(stderr, "[pretend] NCCL: rank %d makes another call than others\n", communicator->rank);
            communicator->error = INVALID_USAGE;
            spoil();
        }
        return done = true;
    }
};
} // namespace nccl
} // namespace pretend

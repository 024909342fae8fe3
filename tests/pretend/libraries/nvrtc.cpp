// NVRTC of the pretend device: the real NVRTC judges a source, and the host's compiler makes what runs of it.
//
// Both is done by compile_kernel.py, once for a source with its options: what it made is kept in PRETEND_CACHE (all these paths
// are told by build.py). "Compiled
// code" is the path of a shared object, which modules.cpp loads. A kernel asked for by an expression has a name of its own.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#define PRETEND_API extern "C" __attribute__((visibility("default")))

namespace
{
constexpr int SUCCESS = 0, PROGRAM_CREATION_FAILURE = 3, COMPILATION = 6, NAME_EXPRESSION_NOT_VALID = 10;

struct Program {
    std::string source, log, image;
    std::vector<std::string> expressions;
    std::map<std::string, std::string> lowered;
};

Program *program_of(void *handle) { return (Program *)handle; }

std::string contents(const std::string &path)
{
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

bool exists(const std::string &path)
{
    struct stat found;
    return stat(path.c_str(), &found) == 0;
}

// Where all that is made of a source lies, but for the suffix: named by its hash, and that of options and expressions.
std::string stem_of(const Program &program, int count, const char *const *options)
{
    std::string all = program.source;
    for (int i = 0; i < count; ++i)
        all += std::string("\n") + options[i];
    for (const std::string &expression : program.expressions)
        all += "\n@" + expression;
    std::hash<std::string> hash;
    char name[40];
    snprintf(name, sizeof name, "%016zx%016zx", hash(all), hash(all + "again"));
    return std::string(PRETEND_CACHE "/") + name;
}

// Whether it compiled. Others may compile the same at the same time: each writes files of its own and renames them.
bool compiled(const Program &program, const std::string &stem, int count, const char *const *options)
{
    static std::atomic<int> compiled_here{0};
    std::string own = "." + std::to_string(getpid()) + "-" + std::to_string(compiled_here++);
    std::ofstream(stem + ".cu" + own) << program.source;
    std::ofstream told(stem + ".told" + own);
    for (int i = 0; i < count; ++i)
        told << "O" << options[i] << "\n";
    for (const std::string &expression : program.expressions)
        told << "N" << expression << "\n";
    told.close();
    std::string command =
        "unset LD_PRELOAD LD_LIBRARY_PATH; '" PRETEND_PYTHON "' -S -E '" PRETEND_COMPILER "' '" PRETEND_BUILT;
    return system((command + "' '" + stem + "' " + own).c_str()) == 0;
}

int give(const std::string &text, char *to)
{
    memcpy(to, text.c_str(), text.size() + 1);
    return SUCCESS;
}

int give_size(const std::string &text, size_t *size)
{
    *size = text.size() + 1;
    return SUCCESS;
}
} // namespace

PRETEND_API const char *nvrtcGetErrorString(int error)
{
    return error == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}

PRETEND_API int nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = 9;
    return SUCCESS;
}

PRETEND_API int nvrtcGetNumSupportedArchs(int *count)
{
    *count = 1;
    return SUCCESS;
}

PRETEND_API int nvrtcGetSupportedArchs(int *architectures)
{
    *architectures = 90;
    return SUCCESS;
}

PRETEND_API int nvrtcCreateProgram(void **to, const char *source, const char *, int headers, const char *const *,
                                   const char *const *)
{
    Program *program = new Program;
    program->source = source;
    *to = program;
    return headers ? PROGRAM_CREATION_FAILURE : SUCCESS; // CuPy names folders of headers, and gives none
}

PRETEND_API int nvrtcDestroyProgram(void **handle)
{
    delete program_of(*handle);
    *handle = nullptr;
    return SUCCESS;
}

PRETEND_API int nvrtcAddNameExpression(void *handle, const char *expression)
{
    program_of(handle)->expressions.push_back(expression);
    return SUCCESS;
}

PRETEND_API int nvrtcCompileProgram(void *handle, int count, const char *const *options)
{
    Program &program = *program_of(handle);
    std::string stem = stem_of(program, count, options);
    if (!exists(stem + ".so") && !compiled(program, stem, count, options)) {
        program.log = contents(stem + ".log");
        std::string first = program.log.substr(0, program.log.find('\n'));
        fprintf(stderr, "[pretend] %s: see %s.log\n", first.c_str(), stem.c_str());
        return COMPILATION;
    }
    for (size_t i = 0; i < program.expressions.size(); ++i)
        program.lowered[program.expressions[i]] = "pretend_name_" + std::to_string(i);
    program.image = "PRETEND " + stem + ".so\n";
    return SUCCESS;
}

PRETEND_API int nvrtcGetPTXSize(void *handle, size_t *size) { return give_size(program_of(handle)->image, size); }
PRETEND_API int nvrtcGetPTX(void *handle, char *to) { return give(program_of(handle)->image, to); }
PRETEND_API int nvrtcGetCUBINSize(void *handle, size_t *size) { return nvrtcGetPTXSize(handle, size); }
PRETEND_API int nvrtcGetCUBIN(void *handle, char *to) { return nvrtcGetPTX(handle, to); }
PRETEND_API int nvrtcGetLTOIRSize(void *handle, size_t *size) { return nvrtcGetPTXSize(handle, size); }
PRETEND_API int nvrtcGetLTOIR(void *handle, char *to) { return nvrtcGetPTX(handle, to); }
PRETEND_API int nvrtcGetProgramLogSize(void *handle, size_t *size) { return give_size(program_of(handle)->log, size); }
PRETEND_API int nvrtcGetProgramLog(void *handle, char *to) { return give(program_of(handle)->log, to); }

PRETEND_API int nvrtcGetLoweredName(void *handle, const char *expression, const char **name)
{
    auto &lowered = program_of(handle)->lowered;
    auto found = lowered.find(expression);
    if (found == lowered.end())
        return NAME_EXPRESSION_NOT_VALID;
    *name = found->second.c_str();
    return SUCCESS;
}

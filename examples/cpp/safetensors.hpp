// Files of safetensors (huggingface.co/docs/safetensors): a length, a header in JSON, and the values one after the other.
#pragma once

#include <map>
#include <string>

#include "gt.hpp"

namespace gt::safetensors {

struct Array {
  Spec spec;
  Bytes values;
};

// The tensors of a file by name. Throws Error of the kind FileError, which says what is wrong with it.
std::map<std::string, Array> read(const std::string& path);
void write(const std::string& path, const std::map<std::string, Array>& arrays);

}  // namespace gt::safetensors

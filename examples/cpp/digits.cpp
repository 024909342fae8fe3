// Recognises handwritten digits with the network that digits.py beside this file has trained.
//
//     digits ADDRESS FILE OUT      reads weights and images from FILE, and writes what the network says of them to OUT
//
// GT_KEY names the key file for a service with keys on TCP. The names of the signals are those of examples/digits.py, so the
// same YAML shards both.
#include <iostream>

#include "gt.hpp"
#include "safetensors.hpp"

namespace {

using Arrays = std::map<std::string, gt::safetensors::Array>;

gt::Tensor put(gt::Session& session, const Arrays& arrays, const std::string& name) {
  const auto found = arrays.find(name);
  if (found == arrays.end()) throw gt::Error("FileError", "the file has no tensor " + name);
  return session.put(found->second.values.data(), found->second.spec);
}

// x · weightᵀ + bias
gt::Tensor layer(gt::Session& session, const Arrays& arrays, const std::string& name, const gt::Tensor& x) {
  const gt::Tensor weight = session.parameter(put(session, arrays, name + ".weight"));
  const gt::Tensor bias = session.parameter(put(session, arrays, name + ".bias"));
  return gt::linear(x, weight, bias);
}

gt::Tensor network(gt::Session& session, const Arrays& arrays) {
  const gt::Signal batch(session, "batch");
  gt::Tensor x = put(session, arrays, "images");
  for (const std::string name : {"hidden", "hidden2"}) {
    const gt::Signal signal(session, name);
    x = gt::tanh(layer(session, arrays, name, x));
  }
  return layer(session, arrays, "out", x);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: digits ADDRESS FILE OUT\n";
    return 2;
  }
  try {
    const Arrays arrays = gt::safetensors::read(arguments[2]);
    gt::Session session(arguments[1]);
    const gt::Tensor logits = network(session, arrays);
    const gt::Tensor labels = put(session, arrays, "labels");
    const gt::Tensor right = gt::eq(gt::argmax(logits, 1), labels);
    const float share = gt::mean(gt::cast(right, gt::DType::f32)).item<float>();
    gt::safetensors::write(arguments[3], {{"logits", {logits.spec(), logits.fetch()}}});
    std::cout << "recognised " << 100 * share << " % of " << labels.spec().size() << " digits on " << session.workers()
              << " workers\n";
  } catch (const gt::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}

// What tests/cpp/client_checks.py drives: each check is a program that says what it has found, line by line.
//
//     checks CHECK ADDRESS [ARGUMENT]
//
// Where a check waits for the test, it reads a line.
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "gt.hpp"
#include "safetensors.hpp"

namespace {

using Arrays = std::map<std::string, gt::safetensors::Array>;

void say(const std::string& line) { std::cout << line << std::endl; }

void wait_for_line() {
  std::string line;
  std::getline(std::cin, line);
}

// Says the error that something ends with.
void expect_error(const std::string& what, const std::function<void()>& fails) {
  try {
    fails();
    say(what + ": no error");
  } catch (const gt::Error& error) {
    say(what + ": " + error.what());
  }
}

// Numbers without a pattern in ±2, the same at each call.
std::vector<float> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1U << 22) - 2.0F;
  }
  return values;
}

// All operations, on inputs that go to the file too.
void operations(const std::string& address, const std::string& out) {
  gt::Session session(address);
  const gt::Tensor x = session.put(numbers(24, 1), {4, 6}), y = session.put(numbers(24, 2), {4, 6});
  const gt::Tensor w = session.put(numbers(18, 3), {3, 6}), bias = session.put(numbers(3, 4), {3});
  const gt::Tensor index = session.put(std::vector<std::int64_t>{3, 0, 3}, {3});
  const gt::Tensor stack = session.put(numbers(48, 5), {2, 4, 6});
  const std::map<std::string, gt::Tensor> all = {
      {"x", x}, {"y", y}, {"w", w}, {"bias", bias}, {"index", index}, {"stack", stack},
      {"neg", -x}, {"abs", gt::abs(x)}, {"exp", gt::exp(x)}, {"log", gt::log(gt::abs(x))}, {"sqrt", gt::sqrt(gt::abs(x))},
      {"sin", gt::sin(x)}, {"cos", gt::cos(x)}, {"tanh", gt::tanh(x)}, {"sigmoid", gt::sigmoid(x)}, {"relu", gt::relu(x)},
      {"erf", gt::erf(x)}, {"add", x + y}, {"sub", 1 - x}, {"mul", 0.5 * x}, {"div", x / y}, {"pow", gt::pow(gt::abs(x), 1.5)},
      {"maximum", gt::maximum(x, 0.25)}, {"minimum", gt::minimum(x, y)}, {"eq", gt::eq(x, x)}, {"lt", gt::lt(x, y)},
      {"gt", gt::gt(x, 0)}, {"where", gt::where(gt::lt(x, y), x, 7)}, {"cast", gt::cast(x, gt::DType::i32)},
      {"half", gt::cast(x, gt::DType::bf16)}, {"sum", gt::sum(x)}, {"sum1", gt::sum(x, {-1}, true)}, {"max", gt::max(x, {0})},
      {"min", gt::min(x)}, {"mean", gt::mean(x, {1})}, {"argmax", gt::argmax(x, 1)}, {"softmax", gt::softmax(x, 1)},
      {"log_softmax", gt::log_softmax(x, -1)}, {"reshape", gt::reshape(x, {2, -1})}, {"permute", gt::permute(stack, {2, 0, 1})},
      {"expand", gt::expand(bias, {5, 3})}, {"cat", gt::cat({x, y}, 0)}, {"slice", gt::slice(x, 1, 2, 3)},
      {"take", gt::take(x, index, 0)}, {"matmul", gt::matmul(stack, gt::permute(w, {1, 0}))}, {"linear", gt::linear(x, w, bias)},
      {"full", session.full({2, 3}, 1.25)}, {"floor", gt::instruction("floor", {x}, {}, x.spec())},
  };
  Arrays arrays;
  for (const auto& [name, tensor] : all) arrays[name] = {tensor.spec(), tensor.fetch()};
  gt::safetensors::write(out, arrays);
  say("wrote " + std::to_string(arrays.size()) + " tensors");
}

void errors(const std::string& address, const std::string&) {
  gt::Session session(address);
  const gt::Tensor x = session.put(numbers(6, 1), {2, 3});
  const gt::Tensor whole = session.put(std::vector<std::int64_t>{0, 9}, {2});
  expect_error("shapes", [&] { gt::matmul(x, x); });
  expect_error("dtypes", [&] { gt::add(x, whole); });
  expect_error("number", [&] { gt::mul(whole, 0.5); });
  expect_error("empty", [&] { gt::relu(gt::Tensor()); });
  expect_error("size", [&] { session.put(numbers(5, 1), {2, 3}); });
  expect_error("negative", [&] { session.put(numbers(6, 1), {-2, -3}); });
  expect_error("vast", [&] { session.put(numbers(6, 1), {std::int64_t{1} << 32, std::int64_t{1} << 32}); });
  expect_error("deep", [&] { session.put(numbers(1, 1), gt::Shape(33, 1)); });
  expect_error("signal", [&] { gt::Signal(session, "caf\xe9"); });
  expect_error("name", [&] { gt::instruction("\xed\xa0\x80", {x}, {}, x.spec()); });
  { gt::Signal(session, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"); }
  expect_error("bytes", [&] { gt::instruction("exp", {x}, {}, {gt::DType::f32, {9}}).fetch(); });
  const gt::Tensor before = gt::exp(x);
  const gt::Tensor unknown = gt::instruction("nonesuch", {x}, {}, x.spec());
  const gt::Tensor depends = gt::relu(unknown + 1);
  const gt::Tensor unlike = gt::instruction("sum", {x}, {{"axes", gt::Axes{5}}, {"keepdims", false}}, {gt::DType::f32, {}});
  const gt::Tensor poisoned = gt::sum(gt::take(x, whole, 0));
  const gt::Tensor after = x * 2;
  expect_error("refused", [&] { unknown.fetch(); });
  expect_error("depends", [&] { depends.fetch(); });
  expect_error("unlike", [&] { unlike.fetch(); });
  expect_error("poisoned", [&] { poisoned.fetch(); });
  expect_error("again", [&] { gt::relu(poisoned).fetch(); });
  const bool well = after.values<float>()[5] == 2 * numbers(6, 1)[5] && before.values<float>().size() == 6;
  say(well ? "the rest was computed" : "the rest is wrong");
  gt::Session other(address);
  const gt::Tensor theirs = other.put(numbers(6, 1), {2, 3});
  expect_error("mixed", [&] { gt::add(x, theirs); });
  session.close();
  expect_error("closed", [&] { gt::relu(x).fetch(); });
}

// Large arrays there and back, each computed with on the way.
void bulk(const std::string& address, const std::string& rounds) {
  gt::Session session(address);
  const std::int64_t rows = 1500, columns = 4000;  // 24 MB: more than may be under way
  for (int round = 0; round < std::atoi(rounds.c_str()); ++round) {
    const std::vector<float> values = numbers(static_cast<std::size_t>(rows * columns), static_cast<std::uint32_t>(round));
    const gt::Tensor x = session.put(values, {rows, columns});
    const std::vector<float> twice = gt::permute(x * 2, {1, 0}).values<float>();
    for (std::int64_t at = 0; at < rows * columns; ++at) {
      const auto turned = static_cast<std::size_t>(at % columns * rows + at / columns);
      if (twice[turned] != 2 * values[static_cast<std::size_t>(at)]) {
        throw gt::Error("WorkerError", "element " + std::to_string(at) + " is wrong");
      }
    }
    if (x.values<float>() != values) throw gt::Error("WorkerError", "what came back is not what was put");
  }
  say("all right after " + std::to_string(session.reconnects()) + " new connections");
}

// Many short runs; what is fetched follows from all of them.
void runs(const std::string& address, const std::string& count) {
  gt::Session session(address);
  gt::Tensor x = session.full({3}, 0.0);
  const int steps = std::atoi(count.c_str());
  for (int step = 1; step <= steps; ++step) {
    x = x + 1;
    session.flush();
    if (step % 50 == 0 && x.values<float>()[2] != static_cast<float>(step)) {
      throw gt::Error("WorkerError", "a run was lost or done twice");
    }
  }
  say("all right after " + std::to_string(session.reconnects()) + " new connections");
}

// Handles that end free their tensors.
void frees(const std::string& address, const std::string&) {
  gt::Session session(address);
  const std::vector<float> megabyte = numbers(std::size_t{1} << 18, 1);
  const gt::Tensor kept = session.put(megabyte, {1 << 18});
  {
    std::vector<gt::Tensor> others;
    for (int each = 0; each < 20; ++each) others.push_back(session.put(megabyte, {1 << 18}));
    for (const gt::Tensor& each : others) each.fetch();
    gt::sum(gt::cat({others[0], others[1]}, 0)).fetch();
    say("many");
    wait_for_line();
  }
  session.flush();
  kept.fetch();
  say("one");
  wait_for_line();
}

// A weight in a signal, to which the service's YAML binds a rule. Nothing else is alive when it says so.
void signals(const std::string& address, const std::string&) {
  gt::Session session(address);
  gt::Tensor weight;
  {
    const gt::Signal signal(session, "hidden");
    const gt::Tensor x = session.put(numbers(64, 1), {1, 64});
    weight = session.parameter(session.put(numbers(128 * 64, 2), {128, 64}));
    gt::sum(gt::matmul(x, gt::permute(weight, {1, 0}))).fetch();
  }
  session.flush();
  const bool same = weight.values<float>() == numbers(128 * 64, 2);
  say(same ? "held" : "the weight has other values");
  wait_for_line();
}

// What a program sees when the service or a worker ends: it says what it was told, and goes on with another session.
void lost(const std::string& address, const std::string&) {
  gt::Options options;
  options.lease_seconds = 20;
  {
    gt::Session session(address, options);
    const gt::Tensor x = session.put(numbers(6, 1), {2, 3});
    x.fetch();
    say("ready");
    wait_for_line();
    expect_error("lost", [&] { gt::relu(x).fetch(); });
  }
  gt::Session session(address, options);
  say("again " + std::to_string(gt::sum(session.full({4, 5}, 1.0)).item<float>()));
}

// Somebody who is not let in, or finds nobody.
void refused(const std::string& address, const std::string& key) {
  gt::Options options;
  options.connect_seconds = 2;
  options.key = key;
  expect_error("refused", [&] { gt::Session(address, options); });
}

}  // namespace

int main(int count, char** arguments) {
  const std::map<std::string, void (*)(const std::string&, const std::string&)> checks = {
      {"operations", operations}, {"errors", errors}, {"bulk", bulk},       {"runs", runs},
      {"frees", frees},           {"lost", lost},     {"refused", refused}, {"signals", signals},
  };
  const auto found = count >= 3 ? checks.find(arguments[1]) : checks.end();
  if (found == checks.end()) {
    std::cerr << "usage: checks CHECK ADDRESS [ARGUMENT]\n";
    return 2;
  }
  try {
    found->second(arguments[2], count > 3 ? arguments[3] : "");
  } catch (const gt::Error& error) {
    say(std::string("failed: ") + error.what());
    return 1;
  }
  return 0;
}

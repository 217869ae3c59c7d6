// A test harness in a page: a test is a function, a check is a macro, and no dependency.
//
//   TEST(a_freed_block_is_handed_out_again) { CHECK_EQ(allocator.num_free_blocks(), 8); }
//   int main() { return pyengine::testing::run_tests(); }
#pragma once

#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pyengine::testing {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*run)()) { all_tests().push_back({name, run}); }
};

struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename T>
std::string to_text(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

template <typename T>
std::string to_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + to_text(value);
  return "{" + text + "}";
}

inline void fail(const char* file, int line, const std::string& what) {
  throw CheckFailed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* what, const char* file, int line) {
  if (!(a == b)) fail(file, line, std::string(what) + ": " + to_text(a) + " != " + to_text(b));
}

// Runs `body`, which must throw an E with exactly this message.
template <typename E, typename Body>
void check_throws(const Body& body, const std::string& message, const char* file, int line) {
  try {
    body();
  } catch (const E& error) {
    return check_equal(std::string(error.what()), message, "message", file, line);
  }
  fail(file, line, "nothing was thrown, expected: " + message);
}

// Runs every test of the program, names those that fail, and returns the exit status.
inline int run_tests() {
  int num_failed = 0;
  for (const Test& test : all_tests()) {
    try {
      test.run();
    } catch (const std::exception& error) {
      ++num_failed;
      std::cerr << "FAILED " << test.name << "\n  " << error.what() << "\n";
    }
  }
  std::cout << all_tests().size() - num_failed << " passed, " << num_failed << " failed\n";
  return num_failed == 0 ? 0 : 1;
}

}  // namespace pyengine::testing

#define TEST(name)                                                               \
  static void name();                                                            \
  static const pyengine::testing::Registration name##_registration(#name, name); \
  static void name()

#define CHECK(condition) \
  if (!(condition)) pyengine::testing::fail(__FILE__, __LINE__, #condition)

#define CHECK_EQ(a, b) pyengine::testing::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)

#define CHECK_THROWS(error, message, ...) \
  pyengine::testing::check_throws<error>([&] { __VA_ARGS__; }, message, __FILE__, __LINE__)

// How failure is reported: a Status for what a user or a file can cause, PP_CHECK for what only a
// bug can cause. Nothing in the project throws across a public header.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pp {

// An error shows at most so many characters of a text from a user or a file.
inline constexpr size_t kMostShown = 200;
// That many of `text`, and "..." for the rest. What cannot be seen is written out, as in \n and
// \x1b.
std::string Shown(std::string_view text);
// A message, so that it stays one line: the same for each of its words, and for all of it a limit
// that only a foreign text exceeds.
std::string OneLine(std::string_view text);

// The process's exit status (see runtime/README.md, "What you can rely on").
enum class Code { kOk = 0, kFailed = 1, kInvalid = 2 };

// A result without a value. The message is one line without a full stop:
// "<file or option>: <what is wrong, with the value> (<what would be right>)".
class [[nodiscard]] Status {
 public:
  Status() = default;
  // Bad usage or bad input: exit status 2.
  static Status Invalid(std::string message) { return {Code::kInvalid, std::move(message)}; }
  // The work itself failed (disk full, a rank died, NaN): exit status 1.
  static Status Failed(std::string message) { return {Code::kFailed, std::move(message)}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with "where: " before it; often a path.
  Status In(const std::string& where) const {
    return ok() ? *this : Status{code_, Shown(where) + ": " + message_};
  }

 private:
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  Code code_ = Code::kOk;
  std::string message_;
};

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // REQUIRES: ok().
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace pp

// Returns from the enclosing function if `expression` is an error.
#define PP_RETURN_IF_ERROR(expression)                                            \
  do {                                                                            \
    if (::pp::Status pp_status = (expression); !pp_status.ok()) return pp_status; \
  } while (false)

// Stops the process: the program itself is wrong.
#define PP_CHECK(condition)                                                                \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: internal error: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

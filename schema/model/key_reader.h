// Reads the keys of a config.json into a model's fields.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schema/base/status.h"
#include "schema/model/config_keys.h"

namespace pp {

// A value, in a few characters.
std::string ShortJson(const nlohmann::json& value);

// Reads the members of one JSON object; keeps the first error.
class KeyReader : public ConfigKeys {
 public:
  // What is passed must outlive the reader. `file` is the name that errors give.
  KeyReader(const nlohmann::json& object, const std::string& file,
            std::span<const KeyAlias> aliases = {})
      : object_(object), file_(file), aliases_(aliases) {}

  void Int(const char* key, int limit, int* value) override;
  void Int(const char* key, int limit, int* value, int64_t fallback) override;
  void Int(const char* key, int limit, int* value, int64_t absent, int64_t null) override;
  void Float(const char* key, double low, double high, float* value, float fallback) override;
  void Training(const char* key, double low, double high, float* value, float fallback) override {
    Float(key, low, high, value, fallback);
  }
  void Bool(const char* key, bool* value, bool fallback) override;
  void Only(const char* key, bool supported) override;
  int Word(const char* key, std::initializer_list<Words> meanings, int) override;
  void Rope(RopeConfig* rope, int positions) override;
  void Window(int* window, int absent) override;
  void WindowOfLayers(int* window, int absent, int layers) override;
  void Ignored(Words keys) override { known_.insert(keys.begin(), keys.end()); }
  void Divides(const char* key, int value, const char* divisor_key, int divisor) override;
  void Require(bool holds, const std::string& error) override {
    if (!holds) Fail("{}", error);
  }

  // Whether layer_types, which files of any family may have, is what the model is: all layers have
  // its window, or it has none.
  void SameLayers(int layers, int window);

  // Null if the key is absent or null. From then on it is known.
  const nlohmann::json* Find(const char* key);

  const Status& status() const { return status_; }
  // The keys with a value that nobody has asked for, each after `prefix`.
  void ListUnknown(const std::string& prefix, std::vector<std::string>* unknown) const;

 private:
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!status_.ok()) return;
    status_ = Status::Invalid(file_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
  const nlohmann::json* Member(const char* key) const;
  // One of the two objects that say it.
  void RopeOf(const char* key, int positions, RopeConfig* rope);
  void Scaling(const char* type, int positions, RopeConfig* rope);

  const nlohmann::json& object_;
  const std::string& file_;
  const std::span<const KeyAlias> aliases_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> unknown_inside_;  // of objects in it
  Status status_;
};

}  // namespace pp

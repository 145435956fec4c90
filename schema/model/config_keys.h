// The keys of a config.json. A family names each of them once, with the field that it sets; one
// implementation reads a file into the fields, another one writes them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "schema/model/config.h"

namespace pp {

// Larger values are a mistake, and products of a few values within the limit still fit 64 bits.
inline constexpr int kMaxVocabulary = 1 << 24;
inline constexpr int kMaxWidth = 1 << 18;
inline constexpr int kMaxLayers = 1 << 16;
inline constexpr int kMaxPositions = 1 << 24;

class ConfigKeys {
 public:
  virtual ~ConfigKeys() = default;

  // An integer from 1 to `limit`. If the key is missing or null: `fallback`.
  virtual void Int(const char* key, int limit, int* value) = 0;
  virtual void Int(const char* key, int limit, int* value, int64_t fallback) = 0;
  // low <= number < high.
  virtual void Float(const char* key, double low, double high, float* value, float fallback) = 0;
  // The same, for what matters to training, but not to the meaning of weights.
  virtual void Training(const char* key, double low, double high, float* value, float fallback) = 0;
  virtual void Bool(const char* key, bool* value, bool fallback) = 0;
  // A switch of the model that is supported in one position only, which is the default.
  virtual void Only(const char* key, bool value) = 0;
  // One of these words, which are synonyms. The first one is the default.
  virtual void Word(const char* key, std::initializer_list<const char*> words) = 0;
  // rope_theta and rope_scaling, or rope_parameters with both.
  virtual void Rope(RopeConfig* rope) = 0;

  // How the values before must relate to each other. `divisor` divides `value`:
  virtual void Divides(const char* key, int value, const char* divisor_key, int divisor) = 0;
  virtual void Require(bool holds, const std::string& error) = 0;
};

}  // namespace pp

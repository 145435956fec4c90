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

// A key, and another name for it.
struct KeyAlias {
  const char *key, *other;
};

class ConfigKeys {
 public:
  virtual ~ConfigKeys() = default;

  // An integer from 1 to `limit`. If the key is missing or null: `fallback`.
  virtual void Int(const char* key, int limit, int* value) = 0;
  virtual void Int(const char* key, int limit, int* value, int64_t fallback) = 0;
  // The same, where null has another meaning than no key.
  virtual void Int(const char* key, int limit, int* value, int64_t absent, int64_t null) = 0;
  // low <= number < high.
  virtual void Float(const char* key, double low, double high, float* value, float fallback) = 0;
  // The same, for what matters to training, but not to the meaning of weights.
  virtual void Training(const char* key, double low, double high, float* value, float fallback) = 0;
  virtual void Bool(const char* key, bool* value, bool fallback) = 0;
  // A switch of the model that is supported in one position only, which is the default.
  virtual void Only(const char* key, bool value) = 0;
  // One of these words. Those of a meaning are synonyms; without the key it is the first one.
  using Words = std::initializer_list<const char*>;
  virtual int Word(const char* key, std::initializer_list<Words> meanings, int meaning) = 0;
  // rope_theta and rope_scaling, or rope_parameters with both. The model has `positions` positions.
  virtual void Rope(RopeConfig* rope, int positions) = 0;
  // sliding_window, of all layers: null for none.
  virtual void Window(int* window, int absent) = 0;
  // The same where use_sliding_window, max_window_layers or layer_types say which of the `layers`
  // have it: all of them, or none.
  virtual void WindowOfLayers(int* window, int absent, int layers) = 0;
  // Keys that transformers knows for this family, and that change nothing here.
  virtual void Ignored(Words keys) = 0;

  // How the values before must relate to each other. `divisor` divides `value`:
  virtual void Divides(const char* key, int value, const char* divisor_key, int divisor) = 0;
  virtual void Require(bool holds, const std::string& error) = 0;
};

}  // namespace pp

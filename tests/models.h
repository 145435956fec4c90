// Models for tests: the numbers that a test cares for, and what config.json has by default.
#pragma once

#include "schema/model/families.h"

namespace pp {

inline ModelConfig Gpt2Model(ModelConfig numbers = {}) {
  numbers.family = FindFamily("gpt2");
  numbers.embedding_dropout = numbers.attention_dropout = numbers.residual_dropout = 0.1f;
  numbers.tied = true;
  return numbers;
}

}  // namespace pp

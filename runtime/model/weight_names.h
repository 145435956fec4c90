// Which of a file's tensors are a model's. Every other one is known to be needless, or an error:
// biases, norms or layers that the configuration does not have would make another model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/files/weight_files.h"
#include "schema/base/status.h"
#include "schema/model/config.h"

namespace pp {

// What becomes of tensors that a model does not use.
enum class UnusedWeights { kRefuse, kIgnore };

class WeightNames {
 public:
  explicit WeightNames(const ModelConfig& model);

  // The name under which files have a tensor of the model; empty: they do not have it.
  //   transformer.wte.weight    its own
  //   wte.weight                of a model without its head, which leaves the prefix out
  //   lm_head.weight            of a tied embedding that is stored as the head alone
  std::string In(const WeightFiles& files, const std::string& tensor) const;

  // Invalid: a tensor of the model is missing, or one of the files is neither used nor needless.
  // Those are ignored if so wanted, and *notes say which. Reads headers, and both matrices where a
  // tied head is stored beside the embedding, which it must equal.
  Status CheckAllUsed(WeightFiles* files, UnusedWeights unused,
                      std::vector<std::string>* notes) const;

 private:
  bool IsNeedless(const std::string& name) const;
  Result<bool> IsTiedHead(WeightFiles* files, const std::string& name) const;

  std::string prefix_;
  bool rotates_ = false;              // has rotary position embeddings
  std::vector<std::string> tensors_;  // the model's, whose first one is the embedding
  std::vector<int64_t> embedding_shape_;
  std::optional<std::string> tied_head_;  // as an untied model's head; none: this one is not tied
};

}  // namespace pp

// The formats of a data file (dataset.h), told apart by content, each in a file of its own: a new
// one is such a file and a row in token_formats.cc.
#pragma once

#include <memory>
#include <string>

#include "runtime/files/token_reader.h"
#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

// A token t is legal when 0 <= t < vocab_size. Errors (Invalid): the file is missing, empty, a
// directory, truncated, damaged, or of a format that is no text (not_text.h). Failed: it cannot be
// read.
Result<std::unique_ptr<TokenReader>> OpenTokens(const std::string& path, int vocab_size);

// As OpenTokens, of one format; none: the file is of another one. A reader takes the file over.
Result<std::unique_ptr<TokenReader>> OpenTokenFile(const std::string& path, int vocab_size,
                                                   InputFile* file);  // see token_file.h
Result<std::unique_ptr<TokenReader>> OpenLlmC(const std::string& path, int vocab_size,
                                              InputFile* file);
Result<std::unique_ptr<TokenReader>> OpenMegatron(const std::string& path, int vocab_size,
                                                  InputFile* file);
Result<std::unique_ptr<TokenReader>> OpenText(const std::string& path, int vocab_size,
                                              InputFile* file);

// A Megatron dataset that is named by its prefix alone, which is no file.
bool IsMegatronPrefix(const std::string& path);
Result<std::unique_ptr<TokenReader>> OpenMegatronPrefix(const std::string& prefix, int vocab_size);

// What ends the errors of a file that is none of these.
inline constexpr const char* kTokensNeeded =
    "a text, a token file of tools/tokens, an llm.c .bin or a Megatron .bin/.idx is needed";
// A file that is not empty.
Result<InputFile> OpenNotEmpty(const std::string& path);

}  // namespace pp

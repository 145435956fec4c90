// From a peer's part to Hugging Face's tensors.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schema/model/layout.h"

namespace pp {

std::vector<Slice> SlicesOf(const Tensor& tensor, const Peer& peer) {
  const int64_t tp = peer.of, index = peer.index;
  const bool columns = tensor.across || !tensor.matrix;  // the pieces are side by side in a row
  std::map<std::string, int64_t> whole, before;
  int64_t all = 0;
  for (const Piece& piece : tensor.pieces) whole[piece.name] += piece.size, all += piece.size;
  const int64_t side = columns ? tensor.rows : tensor.cols;  // the other one, of this peer
  const int64_t sides = tensor.cut == Cut::kIn ? side * tp : side;
  const int64_t side_begin = tensor.cut == Cut::kIn ? side * index : 0;
  std::vector<Slice> slices;
  int64_t ours = 0, theirs = 0;
  for (const Piece& piece : tensor.pieces) {
    const int64_t part = tensor.cut == Cut::kOut ? PartOf(piece, tp) : piece.size;
    const int64_t begin = tensor.cut == Cut::kOut ? std::min(index * part, piece.size) : 0;
    const int64_t count = std::min(part, piece.size - begin), in_file = before[piece.name] + begin;
    Slice slice{.name = piece.name};
    if (columns) {
      slice = {piece.name, {sides, whole[piece.name]},        side_begin, in_file, side, count,
               ours,       side_begin * all + theirs + begin, all};
    } else {
      slice = {piece.name,  {whole[piece.name], sides},
               in_file,     side_begin,
               count,       side,
               ours * side, (theirs + begin) * sides + side_begin,
               sides};
    }
    if (!tensor.matrix) slice.shape.erase(slice.shape.begin());
    if (count > 0) slices.push_back(std::move(slice));
    before[piece.name] += piece.size;
    ours += part;
    theirs += piece.size;
  }
  return slices;
}

}  // namespace pp

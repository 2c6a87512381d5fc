#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/rank/answer_part.h"

// Answers of a job on several nodes. Every process writes its part (AnswerPart) on its own node;
// those of other nodes than rank 0's also send the lines on to rank 0, which keeps the same parts
// and so can join them. After a restart whoever has more of a part gives the other what it lacks:
// lines depend on the rows alone, so both have the beginning of the same part. Where the nodes
// share the folder, nothing is sent.
//
// All of it passes through the store in which the ranks meet (engine::Rendezvous), as keys that
// their reader deletes:
//
//   place        what is asked and of whom, and what the file beside rank 0's parts holds
//   hello/<r>    what rank r has of its part: a number of lines, or "shared"
//   have/<r>     what rank 0 has of it: a number of lines, or "all" where all parts are joined
//   give/<r>/<n> lines that rank r lacks      send/<r>/<n> lines that rank 0 lacks
//   bye/<r>      rank r reads the store no more: its server, rank 0's process, stays until then
//
// Functions throw engine errors; none of them waits. Not thread-safe.

namespace sft::rank {

// Rank 0's end.
class AnswerReceiver {
 public:
  // `own` is rank 0's share, `local_ranks` how many ranks its node has: they write beside it.
  // `token` is new in each attempt. Rank 0 has opened its own part.
  AnswerReceiver(c10d::Store& store, std::string out, const RowShare& own, int local_ranks,
                 std::string run, const std::string& token);

  // Answers those that have said what they have. True once all others have.
  bool Meet();
  // Takes what has come. True when all of it is here. Throws InfrastructureError where a rank has
  // left and some of its answers have not come.
  bool Receive();
  // True once all other ranks have said goodbye: this process may end.
  bool AllLeft();

 private:
  void Welcome(int rank, const std::string& hello);

  c10d::Store& store_;
  const std::string out_;
  const RowShare own_;
  const int local_ranks_;
  const std::string run_;
  struct Other {
    bool met = false;
    std::optional<AnswerPart> part;  // none: it lies in a shared folder
    int64_t next = 0;                // number of the piece that comes next
  };
  std::map<int, Other> others_;
};

// The last that any rank but 0 does with the store. Never throws: with it the rank has done its
// work, and a rank 0 that no longer listens has done its own.
void SayGoodbye(c10d::Store& store, int rank);

// The end of a rank on another node.
class AnswerSender {
 public:
  AnswerSender(c10d::Store& store, std::string out, const RowShare& share, std::string run)
      : store_(store), out_(std::move(out)), share_(share), run_(std::move(run)) {}

  // Compares `part` with what rank 0 has of it, and gets what it lacks. True once that is done.
  // Throws UserError where this node would answer otherwise than rank 0's.
  bool Meet(AnswerPart& part);
  // Both ends have the same folder: nothing is sent.
  bool shared() const { return shared_; }
  // Rank 0 lacks nothing: there is nothing to answer.
  bool all_joined() const { return all_joined_; }
  // The next line; Send passes those on that were added since, at the latest when they are many.
  void Add(std::string_view line);
  void Send();
  // True once rank 0 has taken all that was sent: this process may say goodbye.
  bool AllTaken();

 private:
  void TakeGiven(AnswerPart& part);

  c10d::Store& store_;
  const std::string out_;
  const RowShare share_;
  const std::string run_;
  bool said_ = false, shared_ = false, all_joined_ = false;
  std::optional<int64_t> have_;  // lines that rank 0 had at the meeting
  int64_t taken_ = 0, sent_ = 0;
  std::string unsent_;
};

}  // namespace sft::rank

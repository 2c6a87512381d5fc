#pragma once

#include <string>
#include <vector>

#include "client/top/picture.h"
#include "client/top/snapshot.h"

namespace sft::client::top {

// A key: a character, or one of these.
namespace keys {
inline constexpr int kUp = 0x200000, kDown = kUp + 1, kLeft = kUp + 2, kRight = kUp + 3,
                     kPageUp = kUp + 4, kPageDown = kUp + 5, kHome = kUp + 6, kEnd = kUp + 7,
                     kEnter = kUp + 8, kEscape = kUp + 9, kBackspace = kUp + 10;
}  // namespace keys

// What a person sees and does: which page, which row, what is being typed. What it asks the server
// for is in `query`.
struct View {
  std::string server;  // its address
  Query query;
  Page before = Page::kJobs;  // the list from which the job was opened
  std::string selected;       // name of the selected job or node
  int scroll = 0;             // of a log and events: rows up from the end

  enum class Mode { kLook, kFilter, kConfirm, kHelp } mode = Mode::kLook;
  std::string typed;  // the filter under way
  Action action;      // to be confirmed
  std::string note;   // what became of the last action
};

// What is to be done after a key.
enum class Next { kDraw, kAsk, kAct, kQuit };
// `rows`: of the terminal.
Next OnKey(int key, const Snapshot& snapshot, int rows, View& view);

// What can be drawn on.
struct Screen {
  int width = 80, height = 24;
  bool unicode = true;
};
// The screen: exactly `height` rows, none wider than `width`.
std::vector<Row> Draw(const View& view, const Snapshot& snapshot, const Screen& size);
// The page with all of its rows, for where there is no terminal.
std::vector<Row> DrawWhole(const View& view, const Snapshot& snapshot, int width, bool unicode);

}  // namespace sft::client::top

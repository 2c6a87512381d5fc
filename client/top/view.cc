#include "client/top/view.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/output/format.h"
#include "client/output/json.h"
#include "client/top/pages.h"

namespace sft::client::top {
namespace {

constexpr const char* kOrders[] = {"submitted desc", "started desc", "ended desc", "name"};
// Rows that a screen has beside its page: the title and the keys.
constexpr int kFrame = 2;
// A page is asked for with this width where only its rows' names are needed.
constexpr Screen kAnyWidth{};

struct Help {
  const char* keys;
  const char* what;
};
constexpr Help kHelp[] = {{"1 2 3", "jobs, nodes with their GPUs, what waits"},
                          {"Up Down, j k", "select a row; scroll a log"},
                          {"PgUp PgDn, g G", "a screen on, to the first or the last"},
                          {"Enter", "open the job of the row"},
                          {"Esc", "back to the list; clear the filter"},
                          {"/", "filter: state=running owner=ann group=G, text"},
                          {"s", "in lists: sort by submitted, started, ended, name"},
                          {"c h r", "of a job: cancel, hold, release; each asks first"},
                          {"v m l e", "of a job: curves, its ranks, log, events"},
                          {"Left Right", "of a curve: another value"},
                          {"+ - 0", "of a curve: zoom in to its last half, out, all"},
                          {"[ ]", "of a zoomed curve: earlier, later"},
                          {"s", "of a job: save a checkpoint; asks first"},
                          {"q, Ctrl-C", "leave"}};

std::string KeysOf(const View& view) {
  if (view.query.page == Page::kJob) {
    return view.query.tab == Tab::kCurve
               ? "q quit  ? keys  Esc back  <- -> value  + - 0 zoom  c cancel  h hold  s save"
               : "q quit  ? keys  Esc back  Up/Down scroll  c cancel  h hold  s save";
  }
  if (view.query.page == Page::kNodes) {
    return "q quit  ? keys  / filter  Enter open job  1 jobs  2 nodes  3 queue";
  }
  return "q quit  ? keys  / filter  s sort  Enter open  c cancel  h hold  r release  1-3 pages";
}

// Whether the server is away, and not only of another mind.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

Row Title(const View& view, const Snapshot& snapshot, int width) {
  constexpr const char* kPages[] = {"1 Jobs", "2 Nodes", "3 Queue", "Job"};
  std::string left = " sftctl top  ";
  for (int i = 0; i < 4; ++i) {
    const bool here = static_cast<int>(view.query.page) == i;
    if (i == 3 && !here) continue;
    left += here ? fmt::format("[{}] ", kPages[i]) : fmt::format(" {}  ", kPages[i]);
  }
  const std::string state = snapshot.status.ok()               ? "live"
                            : absl::IsUnknown(snapshot.status) ? "connecting"
                            : IsAway(snapshot.status)          ? "NO ANSWER"
                                                               : "REFUSED";
  std::string right = fmt::format("{}  {} ", view.server, state);
  const int room = width - static_cast<int>(right.size());
  if (room < 20) return {{Fit(left, width), Style::kBar}};
  return {{Fit(left, room), Style::kBar}, {Fit(right, width - room), Style::kBar}};
}

// What is wrong, or what became of the last action; empty: nothing.
Row NoticeOf(const View& view, const Snapshot& snapshot) {
  if (!snapshot.status.ok() && !absl::IsUnknown(snapshot.status)) {
    std::string text(Message(snapshot.status));
    if (IsAway(snapshot.status) && snapshot.time != WallTime()) {
      text = fmt::format("no answer since {}: {}", FormatUtc(snapshot.time).substr(11, 8), text);
    }
    return {Safe(text, Style::kBad)};
  }
  if (!view.note.empty()) return {Safe(view.note, Style::kWarn)};
  return {};
}

Row Footer(const View& view, int width) {
  switch (view.mode) {
    case View::Mode::kFilter:
      return {{"filter: ", Style::kBold}, Safe(view.typed), {"_  (Enter takes it, Esc leaves it)"}};
    case View::Mode::kConfirm:
      return {Safe(view.action.Command(), Style::kBold), {"  really? y yes, n no"}};
    case View::Mode::kHelp:
      return {{Fit("any key: back", width), Style::kBar}};
    case View::Mode::kLook:
      break;
  }
  return {{Fit(" " + KeysOf(view), width), Style::kBar}};
}

std::vector<Row> HelpRows(int width) {
  std::vector<Row> rows;
  for (const Help& help : kHelp) {
    rows.push_back({{Fit(help.keys, 16), Style::kBold}, {help.what}});
    Cut(rows.back(), width);
  }
  return rows;
}

// Rows that can be selected, by their place in the list.
int SelectedOf(const View& view, const std::vector<ListRow>& rows) {
  const auto found = std::ranges::find(rows, view.selected, &ListRow::name);
  return found == rows.end() || view.selected.empty() ? 0 : static_cast<int>(found - rows.begin());
}

void AddRows(const View& view, const PageParts& parts, int room, int width,
             std::vector<Row>& screen) {
  const int count = static_cast<int>(parts.rows.size());
  const bool picks = count > 0 && !parts.rows.front().name.empty();
  const int selected = picks ? SelectedOf(view, parts.rows) : -1;
  int first = 0;
  if (picks) first = std::clamp(selected - room / 2, 0, std::max(0, count - room));
  if (parts.from_end) {
    first = std::clamp(count - room - view.scroll, 0, std::max(0, count - room));
  } else if (!picks) {
    first = std::clamp(view.scroll, 0, std::max(0, count - room));
  }
  for (int i = first; i < std::min(count, first + room); ++i) {
    Row row = parts.rows[static_cast<size_t>(i)].row;
    if (i == selected) {
      std::string text;
      for (const Span& span : row) text += span.text;
      row = {{Fit(text, width), Style::kSelected}};
    }
    Cut(row, width);
    screen.push_back(std::move(row));
  }
  if (count == 0 && room > 0) screen.push_back({{Fit(parts.nothing, width), Style::kDim}});
}

void Move(int by, const PageParts& parts, View& view) {
  const int count = static_cast<int>(parts.rows.size());
  if (count == 0) return;
  if (parts.rows.front().name.empty()) {
    view.scroll = std::clamp(view.scroll + (parts.from_end ? -by : by), 0, count);
    return;
  }
  const int next = std::clamp(SelectedOf(view, parts.rows) + by, 0, count - 1);
  view.selected = parts.rows[static_cast<size_t>(next)].name;
}

const v1::Job* JobOf(const View& view, const Snapshot& snapshot, const std::string& name) {
  if (view.query.page == Page::kJob) return snapshot.job ? &*snapshot.job : nullptr;
  const auto found =
      std::ranges::find_if(snapshot.jobs, [&](const v1::Job& job) { return job.name() == name; });
  return found == snapshot.jobs.end() ? nullptr : &*found;
}

// Asks for an action on the job in sight, or says why there is none.
void AskFor(Action::Kind kind, const v1::Job* job, View& view) {
  if (job == nullptr) return;
  const std::string id = ShortName(job->name());
  if (IsEnded(job->state())) {
    view.note = fmt::format("{} has ended", id);
  } else if (kind == Action::Kind::kHold && job->state() != v1::Job::PENDING) {
    view.note = fmt::format("{} does not wait: only a waiting job can be held", id);
  } else if (kind == Action::Kind::kRelease && !job->held()) {
    view.note = fmt::format("{} is not held", id);
  } else if (kind == Action::Kind::kCheckpoint && job->state() != v1::Job::RUNNING) {
    view.note = fmt::format("{} does not run", id);
  } else {
    view.action = {kind, job->name()};
    view.mode = View::Mode::kConfirm;
  }
}

Next Zoom(int key, const Snapshot& snapshot, View& view) {
  const double least = snapshot.curve.first_x(), most = snapshot.curve.last_x();
  double low = view.query.begin.value_or(least), high = view.query.end.value_or(most);
  const double wide = high - low;
  if (key == '+' && wide > 2) {
    low = high - wide / 2;
  } else if (key == '-') {
    low = std::max(least, high - 2 * wide);
  } else if (key == '[' || key == ']') {
    const double by =
        key == '[' ? std::max(-wide / 2, least - low) : std::min(wide / 2, most - high);
    low += by;
    high += by;
  }
  if (key == '0' || (low <= least && high >= most)) {
    view.query.begin = view.query.end = std::nullopt;
  } else {
    view.query.begin = low;
    view.query.end = high;
  }
  return Next::kAsk;
}

Next GoTo(Page page, View& view) {
  view.query.page = page;
  view.scroll = 0;
  view.selected.clear();
  view.query.job.clear();
  return Next::kAsk;
}

Next Show(Tab tab, View& view) {
  view.query.tab = tab;
  view.scroll = 0;
  return Next::kAsk;
}

Next OnJobKey(int key, const Snapshot& snapshot, View& view) {
  switch (key) {
    case 'v':
      return Show(Tab::kCurve, view);
    case 'm':
      return Show(Tab::kRanks, view);
    case 'l':
      return Show(Tab::kLog, view);
    case 'e':
      return Show(Tab::kEvents, view);
    case 's':
      AskFor(Action::Kind::kCheckpoint, JobOf(view, snapshot, ""), view);
      return Next::kDraw;
    case keys::kLeft:
    case keys::kRight:
      if (view.query.tab != Tab::kCurve) return Next::kDraw;
      view.query.value = NextValue(view.query.value, key == keys::kLeft ? -1 : 1);
      return Next::kAsk;
    case '+':
    case '-':
    case '0':
    case '[':
    case ']':
      return Zoom(key, snapshot, view);
    case keys::kEscape: {
      const std::string job = view.query.job;
      (void)GoTo(view.before, view);
      view.selected = job;
      return Next::kAsk;
    }
    default:
      return Next::kDraw;
  }
}

Next Open(const std::string& job, View& view) {
  if (job.empty()) return Next::kDraw;
  view.before = view.query.page;
  view.query.page = Page::kJob;
  view.query.job = job;
  view.query.tab = Tab::kCurve;
  view.query.begin = view.query.end = std::nullopt;
  view.scroll = 0;
  return Next::kAsk;
}

Next OnListKey(int key, const std::string& job, View& view) {
  switch (key) {
    case keys::kEnter:
      return Open(job, view);
    case '/':
      view.mode = View::Mode::kFilter;
      view.typed = view.query.filter;
      return Next::kDraw;
    case keys::kEscape:
      if (view.query.filter.empty()) return Next::kDraw;
      view.query.filter.clear();
      return Next::kAsk;
    case 's': {
      const auto* const at = std::ranges::find(kOrders, view.query.order);
      view.query.order = at + 1 >= std::end(kOrders) ? kOrders[0] : *(at + 1);
      return Next::kAsk;
    }
    default:
      return Next::kDraw;
  }
}

Next OnFilterKey(int key, View& view) {
  if (key == keys::kEscape) {
    view.mode = View::Mode::kLook;
  } else if (key == keys::kEnter) {
    view.mode = View::Mode::kLook;
    view.query.filter = view.typed;
    view.selected.clear();
    return Next::kAsk;
  } else if (key == keys::kBackspace) {
    // A character may be several bytes.
    while (!view.typed.empty() && (view.typed.back() & 0xc0) == 0x80) view.typed.pop_back();
    if (!view.typed.empty()) view.typed.pop_back();
  } else if (key >= ' ' && key < keys::kUp && key != 0x7f && view.typed.size() < 200) {
    if (key < 0x80) {
      view.typed += static_cast<char>(key);
    } else if (key < 0x800) {
      view.typed += {static_cast<char>(0xc0 | key >> 6), static_cast<char>(0x80 | (key & 0x3f))};
    } else if (key < 0x10000) {
      view.typed +=
          {static_cast<char>(0xe0 | key >> 12), static_cast<char>(0x80 | (key >> 6 & 0x3f)),
           static_cast<char>(0x80 | (key & 0x3f))};
    }
  }
  return Next::kDraw;
}

Next OnLookKey(int key, const Snapshot& snapshot, int rows, View& view) {
  const int room = std::max(1, rows - kFrame - 3);
  const PageParts parts = PartsOf(view, snapshot, kAnyWidth, room);
  const bool lists = view.query.page != Page::kJob;
  const int selected = SelectedOf(view, parts.rows);
  const std::string job =
      parts.rows.empty() || !lists ? "" : parts.rows[static_cast<size_t>(selected)].job;
  constexpr int kFar = 1'000'000;
  switch (key) {
    case 'q':
      return Next::kQuit;
    case '?':
      view.mode = View::Mode::kHelp;
      return Next::kDraw;
    case '1':
      return GoTo(Page::kJobs, view);
    case '2':
      return GoTo(Page::kNodes, view);
    case '3':
      return GoTo(Page::kQueue, view);
    case keys::kUp:
    case 'k':
      Move(-1, parts, view);
      return Next::kDraw;
    case keys::kDown:
    case 'j':
      Move(1, parts, view);
      return Next::kDraw;
    case keys::kPageUp:
      Move(-room, parts, view);
      return Next::kDraw;
    case keys::kPageDown:
      Move(room, parts, view);
      return Next::kDraw;
    case keys::kHome:
    case 'g':
      Move(-kFar, parts, view);
      return Next::kDraw;
    case keys::kEnd:
    case 'G':
      Move(kFar, parts, view);
      return Next::kDraw;
    case 'c':
      AskFor(Action::Kind::kCancel, JobOf(view, snapshot, job), view);
      return Next::kDraw;
    case 'h':
      AskFor(Action::Kind::kHold, JobOf(view, snapshot, job), view);
      return Next::kDraw;
    case 'r':
      AskFor(Action::Kind::kRelease, JobOf(view, snapshot, job), view);
      return Next::kDraw;
    default:
      return lists ? OnListKey(key, job, view) : OnJobKey(key, snapshot, view);
  }
}

}  // namespace

Next OnKey(int key, const Snapshot& snapshot, int rows, View& view) {
  switch (view.mode) {
    case View::Mode::kHelp:
      view.mode = View::Mode::kLook;
      return Next::kDraw;
    case View::Mode::kFilter:
      return OnFilterKey(key, view);
    case View::Mode::kConfirm:
      view.mode = View::Mode::kLook;
      return key == 'y' ? Next::kAct : Next::kDraw;
    case View::Mode::kLook:
      break;
  }
  view.note.clear();
  return OnLookKey(key, snapshot, rows, view);
}

std::vector<Row> Draw(const View& view, const Snapshot& snapshot, const Screen& size) {
  std::vector<Row> screen = {Title(view, snapshot, size.width)};
  const Row notice = NoticeOf(view, snapshot);
  const int room = std::max(0, size.height - kFrame - (notice.empty() ? 0 : 1));
  if (view.mode == View::Mode::kHelp) {
    for (Row& row : HelpRows(size.width)) screen.push_back(std::move(row));
  } else {
    const PageParts parts = PartsOf(view, snapshot, size, room);
    screen.insert(screen.end(), parts.head.begin(), parts.head.end());
    AddRows(view, parts, room - static_cast<int>(parts.head.size()), size.width, screen);
  }
  // Exactly as many rows as there are: the page is cut, the frame stays.
  screen.resize(static_cast<size_t>(room) + 1);
  if (!notice.empty()) screen.push_back(notice);
  screen.push_back(Footer(view, size.width));
  if (screen.size() > static_cast<size_t>(size.height)) {
    screen.resize(static_cast<size_t>(std::max(1, size.height)));
  }
  for (Row& row : screen) Cut(row, size.width);
  return screen;
}

std::vector<Row> DrawWhole(const View& view, const Snapshot& snapshot, int width, bool unicode) {
  constexpr int kPictureRows = 24;
  PageParts parts = PartsOf(view, snapshot, {width, kPictureRows, unicode}, kPictureRows);
  std::vector<Row> rows = std::move(parts.head);
  for (ListRow& row : parts.rows) rows.push_back(std::move(row.row));
  if (parts.rows.empty()) rows.push_back({{parts.nothing}});
  for (Row& row : rows) Cut(row, width);
  return rows;
}

}  // namespace sft::client::top

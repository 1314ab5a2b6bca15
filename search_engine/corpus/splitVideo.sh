#!/usr/bin/env bash
# Cut long videos into clips that an index can be built from. See usage below, or -h.
set -u
export LC_ALL=C # numbers with a point, names as the bytes that they are

usage() {
    cat <<'EOF'
Usage: splitVideo.sh -i DIR [-o DIR] [-d SECONDS] [-q CRF]

Cuts every video below DIR (any depth; mp4 mkv mov webm avi m4v mpg mpeg ts flv wmv) into clips.

  -i  a folder of videos, or one video
  -o  where the clips go, in the same subfolders (default: the folder video beside this script)
  -d  length of a clip in seconds, at least 1 (default: 60)
  -q  quality of H.264, 0 to 51, less is better and larger (default: 20)
  -h  this text

talk.mkv becomes talk_000.mp4, talk_001.mp4, ... The cuts are exact: every frame is in one clip, whichever keyframes the
video has. For that the clips are encoded anew (H.264, AAC); copying the streams could cut at keyframes alone. A rest of
less than a second at the end makes no clip (a whole video that short does). A transcript beside the video (talk.srt,
talk.vtt) is cut along. Of videos that differ only in their suffix, the later ones keep it: talk.mov_000.mp4.

Run again, it makes only the clips that are missing or whose video has changed; it may be stopped or killed at any moment,
a clip is there whole or not at all. What was done is noted in the hidden folder .splitVideo of the output.

Exit status: 0 all was cut; 1 some videos could not be (they are listed); 2 nothing was done (wrong options, no video, no
ffmpeg); 130 stopped by Ctrl-C.
EOF
}

say() { printf '%s\n' "$*" >&2; }
give_up() {
    say "$*"
    exit 2
}

input='' output="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/video" length=60 quality=20
while getopts ':i:o:d:q:h' option; do
    case $option in
    i) input=$OPTARG ;;
    o) output=$OPTARG ;;
    d) length=$OPTARG ;;
    q) quality=$OPTARG ;;
    h)
        usage
        exit 0
        ;;
    :) give_up "-$OPTARG needs a value; -h explains the options." ;;
    *) give_up "There is no option -$OPTARG; -h lists the options." ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 0 ] || give_up "$1: what is that? Name the videos with -i DIR; -h explains the options."
[ -n "$input" ] || give_up "Name the videos with -i DIR; -h explains the options."
[ -e "$input" ] || give_up "There is no file or folder $input."
[[ $length =~ ^[0-9]{1,6}(\.[0-9]{1,3})?$ ]] || give_up "-d is a number of seconds such as 60, not '$length'."
[[ $quality =~ ^[0-9]{1,2}$ ]] && [ "$((10#$quality))" -le 51 ] || give_up "-q is a number from 0 to 51, not '$quality'."
for program in ffmpeg ffprobe; do
    command -v "$program" >/dev/null ||
        give_up "$program is not installed. Install FFmpeg: apt install ffmpeg, brew install ffmpeg, or https://ffmpeg.org/download.html"
done

# Seconds as a decimal number -> whole milliseconds, and back.
milliseconds() { awk -v s="$1" 'BEGIN { printf "%d", s * 1000 + 0.5 }'; }
seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }

step=$(milliseconds "$length")
[ "$step" -ge 1000 ] || give_up "-d must be at least 1 second."

mkdir -p -- "$output" || give_up "The folder $output cannot be made."
output=$(cd -- "$output" && pwd -P) || give_up "The folder $output cannot be entered."
if [ -d "$input" ]; then
    root=$(cd -- "$input" && pwd -P) || give_up "The folder $input cannot be entered."
    [ "$root" != "$output" ] || give_up "The clips need a folder of their own: -i and -o are the same."
    single=''
else
    single=$(basename -- "$input"; printf x)
    single=${single%$'\n'x}
    root=$(cd -- "$(dirname -- "$input")" && pwd -P) || give_up "The folder of $input cannot be entered."
fi

state=$output/.splitVideo
notes=$state/notes
mkdir -p -- "$state/partial" "$notes" || give_up "The folder $state cannot be made."
for left in "$state"/partial/*; do # of runs that are no more
    kill -0 "${left##*/}" 2>/dev/null || rm -rf -- "$left"
done
partial=$state/partial/$$
mkdir -p -- "$partial" || give_up "The folder $partial cannot be made."

child=''
leave() {
    [ -z "$child" ] || kill "$child" 2>/dev/null
    rm -rf -- "$partial"
}
trap leave EXIT
trap 'say "Stopped. What was cut is kept; run the same command again to go on."; exit 130' INT TERM HUP

encoder=()
if ffmpeg -hide_banner -loglevel error -encoders 2>/dev/null | grep -q ' libx264 '; then
    encoder=(-c:v libx264 -preset veryfast -crf "$quality")
fi

# Runs a program in the background, so that a signal is heard at once; its complaints go to a file.
run() {
    "$@" </dev/null >"$partial/said" 2>"$partial/complaints" &
    child=$!
    wait "$child"
    local status=$?
    child=''
    return $status
}

# The length of the picture in milliseconds; fails, with the reason in $reason, where there is none.
duration_of() {
    local shown picture='' whole=''
    if ! run ffprobe -v error -select_streams V:0 -show_entries stream=duration:format=duration "file:$1"; then
        reason=$(tail -n 1 "$partial/complaints" | cut -c 1-200)
        reason="it cannot be read as a video (${reason##*: })"
        return 1
    fi
    shown=$(cat "$partial/said")
    case $shown in *'[STREAM]'*) ;; *)
        reason='it holds no picture that moves'
        return 1
        ;;
    esac
    picture=$(awk -F= '/^\[STREAM\]/ { on = 1 } /^\[\/STREAM\]/ { on = 0 } on && $1 == "duration" && $2 + 0 > 0 { print $2; exit }' "$partial/said")
    whole=$(awk -F= '/^\[FORMAT\]/ { on = 1 } on && $1 == "duration" && $2 + 0 > 0 { print $2; exit }' "$partial/said")
    if [ -z "$picture$whole" ]; then
        reason='it does not say how long it is'
        return 1
    fi
    duration=$(milliseconds "${picture:-$whole}")
}

# The cues of a transcript that are said in [start, start + span), counted from there; nothing where there are none.
cues() { # suffix start span
    tr -d '\r' | awk -v kind="$1" -v start="$2" -v span="$3" '
        function ms(text,   parts, n, at, i) {
            sub(/,/, ".", text)
            n = split(text, parts, ":")
            at = 0
            for (i = 1; i <= n; i++) at = at * 60 + parts[i]
            return int(at * 1000 + 0.5)
        }
        function stamp(at) {
            return sprintf("%02d:%02d:%02d%s%03d", at / 3600000, at / 60000 % 60, at / 1000 % 60, kind == "srt" ? "," : ".", at % 1000)
        }
        BEGIN { RS = ""; FS = "\n" }
        {
            for (row = 1; row <= NF && row <= 2; row++) if ($row ~ /-->/) break
            if (row > NF || row > 2) next
            text = $row
            sub(/^[ \t]+/, "", text)
            split(text, side, /[ \t]*-->[ \t]*/)
            split(side[2], last, /[ \t]+/)
            from = ms(side[1]) - start
            to = ms(last[1]) - start
            if (to <= 0 || from >= span) next
            count++
            if (kind == "vtt" && count == 1) print "WEBVTT\n"
            if (kind == "srt") print count
            print stamp(from < 0 ? 0 : from) " --> " stamp(to > span ? span : to)
            while (++row <= NF) print $row
            print ""
        }'
}

# Cuts [start, start + span) of a video into a whole file; fails where there is no picture.
make_clip() { # video start span clip
    # No command substitution inside of an array: bash parses those while it runs, and a trap then breaks the script.
    local from span
    from=$(seconds "$2")
    span=$(seconds "$3")
    run ffmpeg -hide_banner -nostdin -v error -y -ss "$from" -i "file:$1" -t "$span" -map 0:V:0 -map '0:a:0?' -sn -dn -map_chapters -1 ${encoder[@]+"${encoder[@]}"} \
        -vf 'scale=trunc(iw/2)*2:trunc(ih/2)*2' -pix_fmt yuv420p -c:a aac -movflags +faststart -f mp4 "file:$partial/clip" || return 1
    ffprobe -v error -select_streams V:0 -show_entries stream=duration -of csv=p=0 "file:$partial/clip" </dev/null 2>/dev/null |
        grep -q '[1-9]' || return 2
    local suffix
    for suffix in srt vtt; do
        [ -f "${1%.*}.$suffix" ] || continue
        cues "$suffix" "$2" "$3" <"${1%.*}.$suffix" >"$partial/text"
        if [ -s "$partial/text" ]; then
            mv -f -- "$partial/text" "${4%.*}.$suffix" || return 1
        fi
    done
    mv -f -- "$partial/clip" "$4"
}

problems=()
videos=0 made=0 kept=0

split_video() { # path below the root
    local video=$root/$1 folder=. name=${1##*/} stem facts note first count=0 number=0 start=0 span clip whole=0 from until
    case $1 in */*) folder=${1%/*} ;; esac
    stem=${name%.*}
    videos=$((videos + 1))
    mkdir -p -- "$notes/$folder" "$output/$folder" || { problems+=("$1: its folder cannot be made") && return; }

    # Whose clips are these? A stem belongs to the first video that was cut under it, as long as that video is there.
    note=$notes/$folder/$stem.note
    if [ -f "$note" ] && { read -r -d '' first <"$note" || true; } && [ "$first" != "$name" ] && [ -e "$root/$folder/$first" ]; then
        stem=$name
        note=$notes/$folder/$stem.note
    fi
    facts="$(stat -c '%s %Y' -- "$video" 2>/dev/null || stat -f '%z %m' -- "$video") $step $quality"

    reason=''
    if ! duration_of "$video"; then
        problems+=("$1: $reason")
        return
    fi
    count=$(((duration + step - 1) / step))
    [ $((duration - (count - 1) * step)) -ge 1000 ] || count=$((count - 1))
    [ "$count" -ge 1 ] || count=1

    local was='' was_count=0 field=0
    if [ -f "$note" ]; then
        while IFS= read -r -d '' clip; do
            field=$((field + 1))
            [ $field -ne 2 ] || was=$clip
            [ $field -ne 3 ] || was_count=$clip
        done <"$note"
        [[ $was_count =~ ^[0-9]{1,6}$ ]] || was_count=0
    fi
    if [ "$was" != "$facts" ]; then # new, or another version: its old clips go, all of them
        number=0
        while [ "$number" -lt "$was_count" ]; do
            clip=$output/$folder/${stem}_$(printf %03d "$number")
            rm -f -- "$clip.mp4" "$clip.srt" "$clip.vtt"
            number=$((number + 1))
        done
    fi
    # Written first, so that the clips are known to be this video's from the first one on.
    printf '%s\0' "$name" "$facts" "$count" >"$partial/note" && mv -f -- "$partial/note" "$note" ||
        { problems+=("$1: $note cannot be written") && return; }

    number=0
    while [ "$number" -lt "$count" ]; do
        start=$((number * step))
        span=$step
        [ $((start + span)) -le "$duration" ] || span=$((duration - start + 1000)) # to the last frame
        [ "$span" -le "$step" ] || span=$step
        clip=$output/$folder/${stem}_$(printf %03d "$number").mp4
        number=$((number + 1))
        if [ -f "$clip" ] && [ "$was" = "$facts" ]; then
            kept=$((kept + 1)) whole=$((whole + 1))
            continue
        fi
        if [ -e "$clip" ]; then
            problems+=("$1: $clip is there already and was not made from it; move it away")
            continue
        fi
        make_clip "$video" "$start" "$span" "$clip"
        case $? in
        0) made=$((made + 1)) whole=$((whole + 1)) ;;
        2)
            from=$(seconds "$start")
            until=$(seconds "$duration")
            problems+=("$1: there is no picture from second $from on, although it says that it lasts $until")
            break
            ;;
        *)
            reason=$(tail -n 1 "$partial/complaints" | cut -c 1-200)
            from=$(seconds "$start")
            problems+=("$1: the clip from second $from could not be made (${reason:-no reason was given})")
            break
            ;;
        esac
    done
    say "$1: $whole of $count clips"
}

is_video() {
    case $(printf '%s' "${1##*.}" | tr '[:upper:]' '[:lower:]') in
    mp4 | mkv | mov | webm | avi | m4v | mpg | mpeg | ts | flv | wmv) return 0 ;;
    esac
    return 1
}

if [ -n "$single" ]; then
    split_video "$single"
else
    list=$partial/list
    (cd -- "$root" && find -L . -name '.?*' -prune -o -type f -print0 | sort -z) >"$list"
    while IFS= read -r -d '' path <&3; do
        path=${path#./}
        is_video "$path" || continue
        case $root/$path in "$output"/*) continue ;; esac
        split_video "$path"
    done 3<"$list"
fi

[ "$videos" -gt 0 ] || give_up "There is no video in $input."
if [ ${#problems[@]} -gt 0 ]; then
    say "Not cut, or not wholly (${#problems[@]}):"
    for problem in "${problems[@]}"; do say "  $problem"; done
fi
printf '%s\n' "$made clips made of $videos videos in $output, $kept were there already."
[ ${#problems[@]} -eq 0 ]
